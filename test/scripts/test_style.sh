#!/usr/bin/env bash
# Tests that scripts/check_style.sh notices long files and messages, in a small tree of its own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=test/scripts/cases.sh
. test/scripts/cases.sh
tree=$work/tree
mkdir -p "$tree"/{scripts,model,test/golden}
cp scripts/check_style.sh "$tree/scripts/"

expect() { # STATUS TEXT: exit status, and a part of what is printed
    tests=$((tests + 1)) name=$2
    runs "$1" "$tree/scripts/check_style.sh"
    if [ -n "$2" ]; then says "$2"; fi
}

seq 700 >"$tree/model/long.c"
seq 200 >"$tree/README.md"
seq 701 >"$tree/test/golden/fixture.c"
expect 0 ""
echo 701 >>"$tree/model/long.c"
expect 1 "model/long.c: 701 lines, more than 700"
rm "$tree/model/long.c"
echo 201 >>"$tree/README.md"
expect 1 "README.md: 201 lines, more than 200"
seq 200 >"$tree/README.md"
printf '%s\n' 'fprintf(stderr, "\r%d", step);' >"$tree/model/a.c"
expect 0 ""
printf '%s\n' 'fputs("trouble\n", stderr);' >>"$tree/model/a.c"
expect 1 'model/a.c:2:fputs("trouble'
finish check_style.sh
