#!/usr/bin/env bash
# Runs both commands of the README, scripts/quickstart.sh and scripts/test.sh, on a minimal Debian or
# Ubuntu that debootstrap installs in a folder. Needs root; it is no part of CI.
#   scripts/fresh_machine.sh SUITE [COMMAND]
#     SUITE     bookworm, trixie, noble ...
#     COMMAND   a shell command to run in the sources instead of the two
# The sources are a clone of this folder's commit, or those of TARBALL=FILE, as `make dist` writes it.
# ROOT=FOLDER keeps the system there and uses it again; by default it is a temporary folder.
# Its packages come from the mirror and through the proxy that apt uses here, or from MIRROR=URL.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -lt 1 ] || [ $# -gt 2 ] || [ "${1#-}" != "$1" ]; then
    sed -n '2,9s/^# \?//p' "$0" >&2
    exit 2
fi
suite=$1 commands=("${2:-scripts/quickstart.sh}")
[ $# -eq 2 ] || commands+=(scripts/test.sh)
if [ "$(id -u)" -ne 0 ]; then
    echo "fresh_machine.sh: debootstrap and chroot need root; run it with sudo" >&2
    exit 1
fi
if ! command -v debootstrap >/dev/null; then
    echo "fresh_machine.sh: debootstrap is missing; install the package debootstrap" >&2
    exit 1
fi
root=${ROOT:-}
if [ -z "$root" ]; then
    root=$(mktemp -d)
    trap 'rm -rf --one-file-system "$root"' EXIT
fi

make_root() {
    local origin=Debian components=main proxy='' mirror=${MIRROR:-}
    if grep -qs ubuntu "/usr/share/debootstrap/scripts/$suite"; then
        origin=Ubuntu components=main,universe
    fi
    if command -v apt-get >/dev/null; then
        # shellcheck disable=SC2016 # $(REPO_URI) is a field of apt's
        [ -n "$mirror" ] ||
            mirror=$(apt-get indextargets --format '$(REPO_URI)' "Label: $origin" | sed -n 1p)
        eval "$(apt-config shell proxy Acquire::http::Proxy)"
    fi
    http_proxy=${proxy:-${http_proxy:-}} debootstrap --variant=minbase --components="$components" \
        "$suite" "$root" ${mirror:+"$mirror"} >"$root.log" 2>&1 || {
        tail -n 5 "$root.log" >&2
        return 1
    }
    rm -f "$root.log"
    [ -z "$proxy" ] ||
        echo "Acquire::http::Proxy \"$proxy\";" >"$root/etc/apt/apt.conf.d/proxy"
}

if [ ! -e "$root/etc/os-release" ]; then
    echo "making a minimal $suite in $root"
    make_root
fi
rm -rf "$root/root/mantissa"
if [ -z "${TARBALL:-}" ]; then git clone -q . "$root/root/mantissa"
else mkdir "$root/root/mantissa" && tar -xf "$TARBALL" --strip-components=1 -C "$root/root/mantissa"; fi

# run COMMAND: in the sources. Its mounts live in a namespace of their own and end with it.
run() {
    # shellcheck disable=SC2016 # expanded by the inner shell
    unshare --mount --pid --fork sh -c '
        mount -t proc proc "$1/proc" && mount --rbind /sys "$1/sys" && mount --rbind /dev "$1/dev" &&
            mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm" &&
            exec chroot "$1" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin \
                TERM=dumb sh -c "cd /root/mantissa || exit; $2"' - "$root" "$1"
}

status=0
mkdir -p build
for command in "${commands[@]}"; do
    log=build/fresh-$suite-$(basename "${command%% *}" .sh).log began=$SECONDS came=passed
    run "$command" >"$log" 2>&1 </dev/null || came=failed status=1
    tail -n 5 "$log"
    printf '%s: %s %s in %d s; its output is in %s\n' "$suite" "$command" "$came" \
        $((SECONDS - began)) "$log"
done
exit $status
