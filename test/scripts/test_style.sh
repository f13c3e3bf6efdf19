#!/usr/bin/env bash
# Tests that scripts/check_style.sh notices faults, in a small tree of its own.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=test/scripts/cases.sh
. test/scripts/cases.sh
tree=$work/tree
mkdir -p "$tree"/{scripts,model,test/golden}
cp scripts/check_style.sh "$tree/scripts/"
touch "$tree"/{README.md,Makefile,model/model.mk}
printf '%s\n' '/* Whether it works. */' 'int a; /* the size */' >"$tree/model/gpt.c"
printf '1 model\n7 scripts\n' >"$tree/scripts/style_budget.txt"

expect() { # STATUS TEXT ARGUMENTS ...: exit status, and a part of what is printed
    tests=$((tests + 1)) name=$2
    runs "$1" "$tree/scripts/check_style.sh" "${@:3}"
    if [ -n "$2" ]; then says "$2"; fi
}

expect 0 ""
expect 0 "" --update
[ "$(cat "$tree/scripts/style_budget.txt")" = "1 model" ] || wrong "the budget is not lowered"
echo '# That is new.' >"$tree/scripts/new.sh"
expect 1 "scripts: 1 comments open with" --update
expect 1 "scripts/new.sh:1:# That is new."
rm "$tree/scripts/new.sh"
echo 'int b; /* of the second */' >>"$tree/model/gpt.c"
expect 1 "model: 2 comments open with"
sed -i '$d' "$tree/model/gpt.c"
seq 501 >"$tree/model/long.c"
cp "$tree/model/long.c" "$tree/test/golden/fixture.c"
expect 1 "model/long.c: 501 lines, more than 500"
rm "$tree/model/long.c"
seq 201 >"$tree/README.md"
expect 1 "README.md: more than 200 lines"
echo >"$tree/README.md"
printf 'word %.0s' {1..16501} >"$tree/model/README.md"
expect 1 "README.md of all folders: 16501 words"
finish check_style.sh
