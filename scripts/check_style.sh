#!/usr/bin/env bash
# Checks limits of style: files of at most 500 lines, a short README.md, all README.md together of
# at most 16,500 words, and comments that open as a sentence or with the name of a thing, not with
# one of What, Whether, Who, Where, Of, Those and That. scripts/style_budget.txt holds how many such
# openings each directory may still have. Only smaller numbers may be committed there.
#   scripts/check_style.sh [--update]     --update: lower the budget to the counts of today
set -euo pipefail
cd "$(dirname "$0")/.."
lines_max=500 readme_max=200 words_max=16500 budget=scripts/style_budget.txt failed=0
too_long='
test/kernels/test_attention.c
test/model/lab/compare/test_compare_program.c
test/model/cli/test_program.c
'

sources() { # PATTERN ...: files with these names, except fixtures and built files
    local names=()
    for pattern in "$@"; do names+=(-o -name "$pattern"); done
    find . -name .git -prune -o \
        '(' -path ./build -o -path ./runs -o -path ./datasets -o -path ./test/golden ')' -prune -o \
        -type f '(' "${names[@]:1}" ')' -print0
}

long=$(sources '*.c' '*.h' '*.cu' '*.sh' | xargs -0 wc -l |
    awk -v max=$lines_max -v known="$too_long" '
        $2 != "total" && $1 > max {
            name = substr($2, 3)
            if (!index(known, "\n" name "\n")) print name ": " $1 " lines, more than " max
        }')
if [ -n "$long" ]; then printf '%s\n' "$long" >&2; failed=1; fi
if [ "$(wc -l <README.md)" -gt $readme_max ]; then
    echo "README.md: more than $readme_max lines" >&2
    failed=1
fi
count=$(find . '(' -path ./build -o -path ./runs -o -path ./datasets ')' -prune -o \
    -name README.md -exec cat {} + | wc -w)
if [ "$count" -gt $words_max ]; then
    echo "README.md of all folders: $count words, more than $words_max; measurements belong into" \
        "scripts/results" >&2
    failed=1
fi

# "FILE:LINE:COMMENT" of each comment that opens with one of the words.
words='(what|whether|who|where|of|those|that)([^[:alnum:]_]|$)'
found=$({
    sources '*.c' '*.h' '*.cu' '*.cpp' | xargs -0 grep -HinE "(/\*|//) *$words"
    sources '*.sh' '*.mk' Makefile | xargs -0 grep -HinE "^[[:space:]]*# *$words"
} | sed 's/^\.\///' | sort || true)
counts=$(printf '%s\n' "$found" | sed -nE 's/^([^:]*)\/[^\/:]*:.*/\1/p; t; s/^[^:]*:.*/./p' |
    sort | uniq -c | awk '{ print $1, $2 }')
[ -e $budget ] || printf '%s\n' "$counts" >$budget
over=$(awk 'NR == FNR { allowed[$2] = $1; next } $1 > allowed[$2] + 0 {
    print $2 ": " $1 " comments open with What, Whether, Who, Where, Of, Those or That; " \
        allowed[$2] + 0 " are allowed" }' $budget <(printf '%s\n' "$counts"))
if [ -n "$over" ]; then
    printf '%s\n' "$over" >&2
    awk 'NR == FNR { sub(/:$/, "", $1); over[$1] = 1; next }
        { name = $0; sub(/:.*/, "", name); if (!sub(/\/[^\/]*$/, "", name)) name = "."
          if (name in over) print }' <(printf '%s\n' "$over") <(printf '%s\n' "$found") >&2
    failed=1
elif [ "${1:-}" = --update ]; then
    printf '%s\n' "$counts" >$budget
fi
exit $failed
