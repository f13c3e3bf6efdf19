#!/usr/bin/env bash
# Collects packages that a GPU machine may lack in build/packages: header and library of cJSON, and
# stb_ds.h, of this machine or of its packages, which are unpacked without being installed. See
# scripts/gpu_check.sh --help.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
to=build/packages from=""
if [ ! -e /usr/include/cjson/cJSON.h ] || [ ! -e /usr/include/stb/stb_ds.h ]; then
    from=$(mktemp -d)
    trap 'rm -rf "$from"' EXIT
    (cd "$from" && apt-get download -q libcjson-dev libcjson1 libstb-dev >/dev/null &&
        for package in *.deb; do dpkg -x "$package" . || exit 1; done) || {
        echo "gpu_check: install libcjson-dev and libstb-dev here first" >&2
        exit 1
    }
fi
library=$(find ${from:+"$from"} /usr/lib /lib -name 'libcjson.so.1*' -type f -print -quit 2>/dev/null)
if [ -z "$library" ]; then
    echo "gpu_check: found the header of cJSON, but no libcjson.so.1" >&2
    exit 1
fi
# Two files instead of a link, because not every way of copying keeps links.
mkdir -p "$to/include/cjson" "$to/include/stb" "$to/lib" &&
    cp "$from/usr/include/cjson/cJSON.h" "$to/include/cjson/" &&
    cp "$from/usr/include/stb/stb_ds.h" "$to/include/stb/" &&
    cp --remove-destination "$library" "$to/lib/libcjson.so.1" &&
    cp --remove-destination "$library" "$to/lib/libcjson.so" || exit 1
newest=$(objdump -T "$to"/lib/*.so | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
echo "$to: cJSON (for $(uname -m), needs ${newest/_/ } or newer) and stb_ds.h"
echo "Carry it to the same place on the other machine; make finds it there."
