#!/usr/bin/env bash
# Who may include whom. A room is a folder; each line of the plan names a room and the rooms that
# it may know beside itself. The plan begins at the ground floor and a room may know those before it
# only: includes point down. Between pairs of files (x.c with x.h) there are no circles.
#   scripts/check_floors.sh [FOLDER]    the sources in FOLDER, by default the project
set -euo pipefail
cd "${1:-"$(dirname "$0")/.."}"

plan='
data/base
data/text            data/base
kernels              data/base
kernels/cpu          data/base kernels
kernels/cuda         data/base kernels
kernels/ranks        data/base kernels kernels/cuda
model/architecture   kernels
model/config         data/base kernels model/architecture
model                data/base data/text kernels kernels/ranks model/architecture model/config
model/files          data/base data/text kernels kernels/ranks model/architecture model/config model
model/lab/page       data/base
model/lab/memory     data/base kernels kernels/ranks model/architecture model/config model model/lab/page
model/lab/ranks      data/base kernels kernels/ranks model/architecture model/config model model/lab/page model/lab/memory
model/run            data/base data/text kernels kernels/ranks model/architecture model/config model model/files model/lab/memory model/lab/ranks
model/lab/audit      data/base kernels model/architecture model/config model model/files model/lab/page model/run
model/lab/compare    data/base model/lab/page
.                    data/base kernels kernels/ranks model/config model/files model/run model/lab/audit
'
# The one door to the devices, and the pair that closes what it opened.
exceptions='kernels/backend kernels/ranks
kernels/backend_open kernels/cpu
kernels/backend_open kernels/cuda
kernels/backend_open kernels/ranks'

# "FILE HEADER" for each include of a header of ours.
includes=$(find data kernels model train.c '(' -name '*.[ch]' -o -name '*.cu' -o -name '*.inc' ')' -print0 |
    xargs -0 grep -nHoE '^ *#include "[^"]+"' |
    sed -E 's/^([^:]+):[0-9]+: *#include "([^"]+)"/\1 \2/')

printf '%s\n' "$includes" | awk -v plan="$plan" -v exceptions="$exceptions" '
    function room(path) {
        return sub(/\/[^\/]*$/, "", path) ? path : "."
    }
    BEGIN {
        count = split(plan, lines, "\n")
        for (i = 1; i <= count; i++) {
            words = split(lines[i], word, " ")
            if (words == 0) continue
            known[word[1]] = 1
            for (j = 1; j <= words; j++) {
                allowed[word[1], word[j]] = 1
                if (word[j] in known) continue
                print "the plan: " word[1] " names " word[j] ", which does not come before it"
                failed = 1
            }
        }
        count = split(exceptions, lines, "\n")
        for (i = 1; i <= count; i++) allowed_pair[lines[i]] = 1
    }
    {
        from = room($1); to = room($2); pair = $1
        sub(/\.[^.]*$/, "", pair)
        if (!(from in known)) { print "a room that the plan does not know: " from; failed = 1 }
        else if (!((from, to) in allowed) && !((pair " " to) in allowed_pair)) {
            print $1 " includes " $2 ", but " from "/ may not know " to "/"
            failed = 1
        }
    }
    END { exit failed }' >&2 || {
    echo 'scripts/check_floors.sh: includes must follow the plan at its top' >&2
    exit 1
}

circles=$(printf '%s\n' "$includes" | sed -E 's/\.(cu|[ch]|inc)( |$)/ /g' |
    awk '$1 != $2' | tsort 2>&1 >/dev/null | sed 's/^tsort: //' | grep -v '^-:' || true)
if [ -n "$circles" ]; then
    printf 'Pairs of files that include each other in a circle:\n%s\n' "$circles" >&2
    exit 1
fi
