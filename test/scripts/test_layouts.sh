#!/usr/bin/env bash
# Compares the layouts of the emulated GPU and of attention with CUTLASS's headers, which pip
# installs into build/cutlass. Skips if they cannot be installed, or without CUDA's headers.
set -euo pipefail
cd "$(dirname "$0")/../.."
package=nvidia-cutlass

# headers: prints the folder of CUTLASS's headers, if they are installed.
headers() {
    find build/cutlass -path '*/cutlass_library/source/include/cute/tensor.hpp' -printf '%h\n' \
        2>/dev/null | sed 's,/cute$,,'
}

if [ -z "$(headers)" ] && ! { python3 -m venv build/cutlass &&
    build/cutlass/bin/pip install -q --no-deps "$package"; } >/dev/null 2>&1; then
    echo "skipped: layouts beside CUTLASS's: python3 and pip could not install $package"
    exit 0
fi
make CUTLASS="$(headers)" test-layouts
