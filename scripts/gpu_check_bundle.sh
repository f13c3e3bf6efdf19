#!/usr/bin/env bash
# Collects packages that a GPU machine may lack in build/packages: header and library of cJSON, and
# stb_ds.h. See scripts/gpu_check.sh --help.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

# Copies the library NAME.so.N from FOLDER ... under this name and as NAME.so. It makes two files
# instead of a link, because not every way of copying keeps links.
bundle_library() { # NAME.so.N TO FOLDER ...
    local name=$1 to=$2 library
    shift 2
    library=$(find "$@" -name "$name*" -type f 2>/dev/null | head -n 1)
    if [ -z "$library" ]; then
        echo "gpu_check: found its header, but no $name" >&2
        return 1
    fi
    rm -f "$to/$name" "$to/${name%.*}"
    cp "$library" "$to/$name" && cp "$library" "$to/${name%.*}"
}

collect_bundle() {
    local to=build/packages from="" part newest missing=0
    for part in cjson/cJSON.h stb/stb_ds.h; do
        if [ ! -e "/usr/include/$part" ]; then missing=1; fi
    done
    if [ $missing -eq 1 ]; then
        from=$(mktemp -d) # unpacked, not installed: needs no root
        part="libcjson-dev libcjson1 libstb-dev"
        # shellcheck disable=SC2086
        (cd "$from" && apt-get download -q $part >/dev/null &&
            for part in *.deb; do dpkg -x "$part" . || exit 1; done) || {
            echo "gpu_check: install libcjson-dev and libstb-dev here first" >&2
            return 1
        }
    fi
    mkdir -p "$to/include/cjson" "$to/include/stb" "$to/lib"
    cp "$from/usr/include/cjson/cJSON.h" "$to/include/cjson/" &&
        cp "$from/usr/include/stb/stb_ds.h" "$to/include/stb/" &&
        bundle_library libcjson.so.1 "$to/lib" ${from:+"$from"} /usr/lib /lib || return 1
    newest=$(objdump -T "$to"/lib/*.so | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
    if [ -n "$from" ]; then rm -rf "$from"; fi
    echo "$to: cJSON (for $(uname -m), needs ${newest/_/ } or newer) and stb_ds.h"
    echo "Carry it to the same place on the other machine; make finds it there."
}
collect_bundle
