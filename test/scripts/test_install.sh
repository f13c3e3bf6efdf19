#!/usr/bin/env bash
# Tests make install and make uninstall into a folder, used from elsewhere. TRAIN is any built
# program.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)/"a %d folder"
mkdir "$folder"
trap 'rm -rf "${folder%/*}"' EXIT
fail() { echo "test_install.sh: $*" >&2; exit 1; }

"${MAKE:-make}" -s install DESTDIR="$folder" PREFIX=/opt "$@" >/dev/null
bin=$folder/opt/bin
cd /
for name in train prepare compare; do
    "$bin/mantissa-$name" --help >"$folder/help"
    grep -q "mantissa-$name " "$folder/help" || fail "$name calls itself something else"
    if grep -q '\./[a-z]' "$folder/help"; then fail "the help of $name has names of the build"; fi
    page=$folder/opt/share/man/man1/mantissa-$name.1
    grep -q "^mantissa-$name" "$page" || fail "no name in $page"
    if command -v groff >/dev/null; then
        groff -man -Tutf8 -ww "$page" 2>&1 >/dev/null | grep . && fail "warnings of groff"
    fi
done
"$bin/mantissa-train" --config quickstart.json --dry-run >"$folder/plan" ||
    fail "does not find the configs"
grep -q 'training quickstart' "$folder/plan" || fail "no plan"
if "$bin/mantissa-train" 2>"$folder/error"; then fail "nothing to do is no error"; fi
grep -q 'mantissa-train --help' "$folder/error" || fail "the message names another program"
"$bin/mantissa-train" --sample a --from nothing 2>"$folder/error" && fail "there is no such model"
script=$(sed -z 's/\n    / /g' "$folder/error" | sed -n 's/^  fetch it: \(.*get_model.sh\) .*/\1/p')
[ -x "$script" ] || fail "the message names no script: $(cat "$folder/error")"
"$bin/mantissa-train" --sample a --from scripts/nothing 2>"$folder/error" && fail "no such model"
grep -q 'there is no scripts/nothing ' "$folder/error" || fail "the message names another path"
cd - >/dev/null
"${MAKE:-make}" -s uninstall DESTDIR="$folder" PREFIX=/opt "$@" >/dev/null
[ -z "$(find "$folder/opt" ! -type d)" ] || fail "uninstall leaves $(find "$folder/opt" ! -type d)"

# FILTER reaches the tests, and skips everything else.
"${MAKE:-make}" -n test FILTER='adamw/*' "$@" >"$folder/commands"
grep -q -- "/tests --jobs 2 --filter 'adamw/\*'" "$folder/commands" || fail "FILTER is not passed on"
if grep -q 'check_layers\|test-device' "$folder/commands"; then fail "FILTER runs more"; fi
