#!/usr/bin/env bash
# Packs the built programs with the libraries that they need, configs and scripts:
#   DIR/mantissa-VERSION-py3-none-manylinux_2_NN_MACHINE.whl   for pip
#   DIR/mantissa-VERSION-linux-MACHINE.tar.gz                  for people without Python
#   scripts/make_wheel.sh [DIR] [VARIABLE=VALUE]...   run make first; DIR is build/dist, and make
#                                                     install gets the variables
# Both put mantissa-train, mantissa-prepare and mantissa-compare on the path; `mantissa-script NAME`
# of the wheel runs a script. 2.NN is the oldest glibc that has what the programs use. The C and C++
# libraries are those of the system; CUDA, NCCL and MPI are looked for at run time, as always.
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/dist
case ${1:-} in
-*) sed -n '2,12s/^# \?//p' "$0" && exit 2 ;;
*=* | "") ;;
*) out=$1 && shift ;;
esac
for tool in readelf strip python3; do
    command -v $tool >/dev/null || { echo "make_wheel.sh: there is no $tool here" >&2; exit 1; }
done
version=$(sed -n 's/.*MANTISSA_VERSION "\(.*\)"/\1/p' data/util/program.h) machine=$(uname -m)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/mantissa-$version home=$stage/mantissa-$version/lib/mantissa
"${MAKE:-make}" -s install DESTDIR="$stage" PREFIX="/mantissa-$version" "$@" >/dev/null
cp LICENSE README.md "$root"

# ---- libraries, and the oldest glibc

system='^(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|cuda|cudart|cublas|cublasLt|nccl)\.so)'
mkdir "$home/lib"
while read -r name _ path _; do
    [[ $name =~ $system ]] && continue
    [ -f "$path" ] || { echo "make_wheel.sh: $name is not found" >&2; exit 1; }
    install -m 755 "$path" "$home/lib/$name"
done < <(ldd "$home/train" | sed 's/^\t//' | grep '=>')
binaries=("$home/train" "$home/prepare" "$home/compare" "$home"/lib/*)
strip "${binaries[@]}"
glibc=$(readelf -VW "${binaries[@]}" | grep -oE 'GLIBC_2\.[0-9]+' | sort -Vu | tail -n 1)
tag=py3-none-manylinux_2_${glibc#*.}_$machine

# ---- the two packages

mkdir -p "$out"
tar -C "$stage" --owner=0 --group=0 -czf "$out/mantissa-$version-linux-$machine.tar.gz" \
    "mantissa-$version"
wheel=$out/mantissa-$version-$tag.whl
rm -f "$wheel"
python3 - "$home" "$version" "$tag" "$wheel" <<'PYTHON'
import base64, hashlib, os, sys, zipfile

home, version, tag, wheel = sys.argv[1:]
INIT = '''"""The programs of mantissa, which are in this folder."""
import os
import sys

HOME = os.path.dirname(os.path.abspath(__file__))


def _run(program):
    os.execv(os.path.join(HOME, program), [f"mantissa-{program}", *sys.argv[1:]])


def train():
    _run("train")


def prepare():
    _run("prepare")


def compare():
    _run("compare")


def script():
    folder = os.path.join(HOME, "scripts")
    parts = ("__pycache__", "fetch.sh", "report_page.py")  # of the others
    names = sorted(set(os.listdir(folder)).difference(parts))
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        sys.exit("usage: mantissa-script NAME [ARGUMENT]...\\nNAME: " + " ".join(names))
    path = os.path.join(folder, sys.argv[1])
    command = [sys.executable, path] if path.endswith(".py") else ["bash", path]
    os.execvp(command[0], command + sys.argv[2:])
'''
ENTRIES = "[console_scripts]\n" + "".join(
    f"mantissa-{name} = mantissa:{name}\n" for name in ("train", "prepare", "compare", "script"))
METADATA = f"""Metadata-Version: 2.1
Name: mantissa
Version: {version}
Summary: A trainer of GPT-2, Llama, Mistral and Qwen in C and CUDA
License: MIT
Requires-Python: >=3.9
Description-Content-Type: text/markdown

""" + open("README.md", encoding="utf-8").read()
WHEEL = f"Wheel-Version: 1.0\nGenerator: mantissa\nRoot-Is-Purelib: false\nTag: {tag}\n"

records = []
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
    def add(name, data, mode=0o644):
        info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # equal inputs make equal wheels
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        records.append(f"{name},sha256={digest},{len(data)}\n")

    add("mantissa/__init__.py", INIT.encode())
    for folder, folders, names in os.walk(home):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                add("mantissa/" + os.path.relpath(path, home), file.read(), os.stat(path).st_mode & 0o777)
    info = f"mantissa-{version}.dist-info"
    add(f"{info}/LICENSE", open("LICENSE", "rb").read())
    add(f"{info}/METADATA", METADATA.encode())
    add(f"{info}/WHEEL", WHEEL.encode())
    add(f"{info}/entry_points.txt", ENTRIES.encode())
    records.append(f"{info}/RECORD,,\n")
    archive.writestr(f"{info}/RECORD", "".join(records))
PYTHON
ls -sh "$out"/mantissa-"$version"-*
