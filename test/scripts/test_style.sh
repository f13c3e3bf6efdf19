#!/usr/bin/env bash
# Tests that scripts/check_style.sh notices faults, in a small tree of its own.
set -euo pipefail
cd "$(dirname "$0")/../.."
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree"/{scripts,model,test/golden}
cp scripts/check_style.sh "$tree/scripts/"
touch "$tree"/{README.md,Makefile,model/model.mk}
printf '%s\n' '/* Whether it works. */' 'int a; /* the size */' >"$tree/model/gpt.c"
printf '1 model\n7 scripts\n' >"$tree/scripts/style_budget.txt"
failed=0

expect() { # STATUS TEXT ARGUMENTS ...: exit status, and a part of what is printed
    local output status=0
    output=$("$tree/scripts/check_style.sh" "${@:3}" 2>&1) || status=$?
    if [ "$status" != "$1" ] || [[ $output != *"$2"* ]]; then
        printf 'expected status %s and "%s", got %s:\n%s\n' "$1" "$2" "$status" "$output" >&2
        failed=1
    fi
}

expect 0 ""
expect 0 "" --update
[ "$(cat "$tree/scripts/style_budget.txt")" = "1 model" ] || failed=1
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
[ "$failed" = 0 ] && echo "check_style.sh: 8 cases: ok"
exit "$failed"
