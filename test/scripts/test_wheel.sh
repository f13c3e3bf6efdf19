#!/usr/bin/env bash
# Tests scripts/make_wheel.sh: the tarball and the wheel, unpacked and, where Python has venv,
# installed, are used from elsewhere. Arguments are variables of make, as for test_install.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)/"a folder"
mkdir "$folder"
trap 'rm -rf "${folder%/*}"' EXIT
fail() { echo "test_wheel.sh: $*" >&2; exit 1; }
if ! command -v python3 >/dev/null || ! command -v readelf >/dev/null; then
    echo "skipped: the wheel, because there is no python3 or no readelf here"
    exit 0
fi
scripts/make_wheel.sh "$folder" "$@" >"$folder/made" || fail "$(cat "$folder/made")"
wheel=$(echo "$folder"/*.whl) tarball=$(echo "$folder"/*.tar.gz)

uses() { # BIN: the programs there work without anything of this folder or the environment
    (cd / && env -i PATH="$1:/usr/bin:/bin" mantissa-train --config quickstart.json --dry-run) \
        >"$folder/plan" || fail "no plan from $1"
    grep -q 'training quickstart' "$folder/plan" || fail "another plan from $1"
    for name in train prepare compare; do
        (cd / && env -i PATH="$1:/usr/bin:/bin" "mantissa-$name" --help) >"$folder/help"
        grep -q "mantissa-$name " "$folder/help" || fail "$name of $1 calls itself something else"
    done
}

tar -xzf "$tarball" -C "$folder"
home=$(echo "$folder"/mantissa-*/lib/mantissa)
uses "${home%/lib/*}/bin"
for library in "$home"/lib/*; do
    ldd "$home/train" | grep -F "$library" >/dev/null || [ -d build/packages ] || fail "$library is not used"
done
[ -e "$home/lib/libc.so.6" ] && fail "the C library of this system is inside"

python3 - "$wheel" "$folder/unpacked" <<'PYTHON' || fail "the wheel is wrong"
import base64, csv, hashlib, os, re, sys, zipfile
wheel, folder = sys.argv[1:]
name, version, python, abi, platform = os.path.basename(wheel)[:-4].split("-")
assert (name, python, abi) == ("mantissa", "py3", "none"), wheel
assert re.fullmatch(r"manylinux_2_\d+_\w+", platform), platform
with zipfile.ZipFile(wheel) as archive:
    info = f"mantissa-{version}.dist-info"
    rows = list(csv.reader(archive.read(f"{info}/RECORD").decode().splitlines()))
    assert sorted(row[0] for row in rows) == sorted(archive.namelist())
    for path, digest, size in rows:
        data = archive.read(path)
        found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert path.endswith("/RECORD") or (digest, size) == (f"sha256={found}", str(len(data))), path
    tag = f"{python}-{abi}-{platform}"
    assert f"Tag: {tag}\n" in archive.read(f"{info}/WHEEL").decode()
    assert archive.getinfo("mantissa/train").external_attr >> 16 & 0o111
PYTHON

if python3 -m venv "$folder/venv" >/dev/null 2>&1; then
    "$folder/venv/bin/pip" --disable-pip-version-check install -q --no-index "$wheel" ||
        fail "pip does not install it"
    uses "$folder/venv/bin"
    if "$folder/venv/bin/mantissa-script" nothing 2>"$folder/help"; then fail "no such script"; fi
    grep -q ' get_model.sh .* rows.py' "$folder/help" || fail "no scripts: $(cat "$folder/help")"
    printf 'text\nx\n' >"$folder/a.csv"
    [ "$("$folder/venv/bin/mantissa-script" rows.py "$folder/a.csv")" = '{"text": "x"}' ] ||
        fail "a script does not run"
else
    echo "skipped: installing the wheel, because Python has no venv here"
fi
echo "make_wheel.sh: 0 failures"
