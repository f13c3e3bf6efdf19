# shellcheck shell=bash
# Sourced by quickstart.sh and test.sh: installs the Debian or Ubuntu packages that are missing.

# install_missing FILE PACKAGE ...: installs each PACKAGE whose FILE does not exist.
install_missing() {
    local missing=() file package
    while [ $# -gt 0 ]; do
        file=$1 package=$2
        shift 2
        if [ ! -e "$file" ] && ! command -v "$file" >/dev/null 2>&1; then
            missing+=("$package")
        fi
    done
    [ ${#missing[@]} -eq 0 ] && return 0
    if ! command -v apt-get >/dev/null 2>&1; then
        printf 'Please install what provides: %s\n(automatic only with apt-get)\n' \
            "${missing[*]}" >&2
        return 1
    fi
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null 2>&1; then
            printf 'As root, run: apt-get install %s\n' "${missing[*]}" >&2
            return 1
        fi
        as_root=(sudo)
    fi
    printf 'Installing: %s\n' "${missing[*]}"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Headers needed to build, each with its package.
install_build_needs() {
    install_missing gcc gcc make make \
        /usr/include/stdio.h libc6-dev \
        /usr/include/cjson/cJSON.h libcjson-dev \
        /usr/include/stb/stb_ds.h libstb-dev \
        /usr/include/dnnl.h libdnnl-dev "$@"
}
