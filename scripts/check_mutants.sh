#!/usr/bin/env bash
# Checks that the tests of the CUDA kernels detect mistakes. Plants the mutants of
# test/cuda_emulator/mutants.txt one by one in a copy of the tree (build/mutants), runs their tests
# in emulated builds, and prints each outcome. Exits with 1 if a mutant escaped in every build.
#   scripts/check_mutants.sh [--flavors "plain address thread"] [--first] [MUTANT...]
#     --flavors   the builds to try: plain, address (AddressSanitizer), thread (ThreadSanitizer); ""
#                 only checks that each mutant's text is in its file, once
#     --first     continue with the next mutant once one build has caught it
#     MUTANT      its name, or a pattern such as 'layernorm*'; without one, all
# JOBS=2 says how many compilers run at a time, MUTANT_SECONDS=600 how long the tests may take.
set -euo pipefail
cd "$(dirname "$0")/.."
flavors="plain address thread" first=no
while [ $# -gt 0 ]; do
    case $1 in
    --flavors) flavors=$2 && shift 2 ;;
    --first) first=yes && shift ;;
    -*) sed -n '2,10s/^# \?//p' "$0" >&2 && exit 2 ;;
    *) break ;;
    esac
done
wanted=("$@")
root=$PWD tree=$PWD/build/mutants
jobs=${JOBS:-2} seconds=${MUTANT_SECONDS:-600}
output=$tree/build/output.txt

build_of() { # FLAVOR: prints its build folder
    case $1 in plain) echo emulated ;; *) echo "emulated-$1" ;; esac
}

# Refreshes the copy file by file, so that only changed files are compiled again. Files deleted here
# are deleted there, and from the libraries.
refresh() {
    mkdir -p "$tree/build"
    local file
    while read -r -d '' file; do
        cmp -s "$file" "$tree/$file" && continue
        mkdir -p "$tree/$(dirname "$file")"
        cp -f "$file" "$tree/$file"
    done < <(find . \( -name build -o -name .git -o -name runs \) -prune -o -type f -print0)
    while read -r -d '' file; do
        [ -e "$file" ] || rm -f "$tree/$file" "$tree"/build/*/libmantissa.a
    done < <(cd "$tree" && find . -name build -prune -o -type f -print0)
}

# Prints the file with $new for $old in the one line that contains it, or in the first one below the
# one line that contains $after.
mutate() {
    OLD=$old NEW=$new AFTER=$after awk '
        BEGIN { old = ENVIRON["OLD"]; new = ENVIRON["NEW"]; after = ENVIRON["AFTER"] }
        after != "" && index($0, after) { matches++; open = 1 }
        index($0, old) && (after == "" || (open && !done)) {
            at = index($0, old)
            $0 = substr($0, 1, at - 1) new substr($0, at + length(old))
            done++
        }
        { print }
        END { exit !(done == 1 && (after == "" || matches == 1)) }' "$root/$file"
}

# Runs the tests of `filter` in a flavor; prints the outcome as one word.
verdict() {
    local build program=device_tests status=0 command
    build=$(build_of "$1")
    [ "$filter" = test_emulator ] && program=test_emulator
    local criterion=()
    [ "$1" = thread ] && criterion=(CRITERION=0)
    if ! make -C "$tree" -j"$jobs" "${criterion[@]}" BUILD="$build" "build/$build/$program" \
        >"$output" 2>&1; then
        echo "no-build"
        return
    fi
    command=("build/$build/$program")
    [ $program = test_emulator ] || command+=(--jobs 2 --filter "$filter")
    (cd "$tree" && OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive TEST_DEVICE=cuda \
        timeout "$seconds" "${command[@]}") >"$output" 2>&1 || status=$?
    if [ $status = 124 ]; then echo "hangs"
    elif [ $status = 0 ] && grep -q 'Tested: 0' "$output"; then echo "no-test"
    elif [ $status = 0 ]; then echo "missed"
    elif grep -q 'data race' "$output"; then echo "race"
    elif grep -q 'ERROR: AddressSanitizer' "$output"; then echo "address"
    elif grep -q 'runtime error:' "$output"; then echo "undefined"
    elif grep -q '^cuda_emulator:' "$output"; then echo "emulator"
    elif grep -qE 'FAILED|\[FAIL\]' "$output"; then echo "wrong"
    else echo "crash"; fi
}

# Without a mutant every filter must find tests, and they must pass.
known_filters=" "
check_filter() {
    local flavor word
    case $known_filters in *" $filter "*) return ;; esac
    known_filters+="$filter "
    for flavor in $flavors; do
        word=$(verdict "$flavor")
        [ "$word" = missed ] && continue
        echo "without a mutant, $filter in the $flavor build: $word" >&2
        tail -n 20 "$output" >&2
        exit 2
    done
}

mutants=0 escaped=0
try() {
    local flavor word caught=no line target
    [ -n "$name" ] || return 0
    if [ ${#wanted[@]} -gt 0 ]; then
        local pattern chosen=no
        # shellcheck disable=SC2053
        for pattern in "${wanted[@]}"; do [[ $name == $pattern ]] && chosen=yes; done
        [ $chosen = yes ] || return 0
    fi
    check_filter
    [ -n "$flavors" ] && target=$tree/$file || target=/dev/null
    if ! mutate >"$target"; then
        echo "mutant $name: its text is not in $file, or not once" >&2
        exit 2
    fi
    mutants=$((mutants + 1))
    [ -n "$flavors" ] || return 0
    line=$(printf '%-36s' "$name")
    for flavor in $flavors; do
        if [ $caught = yes ] && [ $first = yes ]; then word=-; else word=$(verdict "$flavor"); fi
        case $word in
        missed | -) ;;
        no-build | no-test)
            echo "mutant $name in the $flavor build: $word" >&2
            tail -n 20 "$output" >&2
            exit 2
            ;;
        *) caught=yes ;;
        esac
        line+=$(printf ' | %-9s' "$word")
    done
    cp -f "$root/$file" "$tree/$file"
    [ $caught = yes ] || line+=" | ESCAPED" escaped=$((escaped + 1))
    echo "$line"
}

if [ -n "$flavors" ]; then
    refresh
    printf '%-36s' mutant
fi
for flavor in $flavors; do printf ' | %-9s' "$flavor"; done
[ -z "$flavors" ] || echo
name="" file="" filter="" after="" old="" new=""
while IFS= read -r text; do
    case $text in
    '' | '#'*) ;;
    '@ '*) after=${text#@ } ;;
    '- '*) old=${text#- } ;;
    '+ '* | '+') new=${text#+} new=${new# } ;;
    *)
        try
        after="" old="" new=""
        read -r name file filter <<<"$text"
        if [ -z "$filter" ] && [ "$name" != end ]; then
            echo "mutants.txt: cannot read: $text" >&2
            exit 2
        fi
        ;;
    esac
done < <(cat test/cuda_emulator/mutants.txt; echo end)
[ -n "$flavors" ] || exec echo "check_mutants.sh: $mutants mutants are in their files"
echo "$mutants mutants, $escaped missed"
[ $escaped = 0 ]
