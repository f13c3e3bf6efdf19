#!/usr/bin/env bash
# Checks include directives against a plan of layers. A module is a directory; each line of the plan
# names a module and the modules that it may include besides itself. Modules are listed from the
# bottom up, and a module may name only those before it. Pairs of files (x.c with x.h) must not
# include each other in a cycle.
#   scripts/check_layers.sh [FOLDER]    the sources in FOLDER, by default the project
set -euo pipefail
cd "${1:-"$(dirname "$0")/.."}"

plan='
data/util
data/tokenize        data/util
data/corpus          data/util data/tokenize
kernels              data/util data/corpus
kernels/cpu          data/util kernels
kernels/cuda         data/util kernels
kernels/cuda/attention data/util kernels kernels/cuda
kernels/cuda/matmul  data/util kernels kernels/cuda
kernels/cuda/quantize data/util kernels kernels/cuda
kernels/cuda/update  data/util kernels kernels/cuda
kernels/cuda/backend data/util kernels kernels/cuda kernels/cuda/matmul
kernels/comm         data/util kernels kernels/cuda
kernels/open         data/util kernels kernels/cpu kernels/cuda/backend kernels/comm
model/architecture   kernels
model/config         data/util data/tokenize kernels model/architecture
model/core           data/util kernels model/architecture model/config
model/pass           data/util kernels model/architecture model/config model/core
model/task           data/util data/tokenize data/corpus kernels model/architecture model/config model/core model/pass
model/optimize       data/util data/tokenize data/corpus kernels model/architecture model/config model/core model/pass model/task
model/io             data/util data/tokenize data/corpus kernels model/architecture model/config model/core model/pass model/task model/optimize
model/choices        data/util data/tokenize data/corpus model/core model/pass model/task model/optimize
model/plan           data/util kernels model/architecture model/config model/core model/pass model/task model/optimize
model/session        data/util data/tokenize data/corpus kernels kernels/open model/architecture model/config model/core model/pass model/task model/optimize model/io model/plan
model/cli            data/util data/tokenize data/corpus kernels kernels/open model/architecture model/config model/core model/pass model/task model/optimize model/io model/choices model/plan model/session
model/lab/audit      data/util kernels model/architecture model/config model/core model/pass model/task model/optimize model/io model/plan model/session model/cli
model/lab/evaluation data/util data/tokenize data/corpus kernels kernels/open model/architecture model/config model/core model/pass model/task model/optimize model/io model/choices model/session model/cli
model/lab/compare    data/util
.                    data/util kernels kernels/comm kernels/open model/config model/io model/cli model/lab/audit model/lab/evaluation
'

# Prints "FILE HEADER" for each include of a header of ours.
includes=$(find data kernels model train.c '(' -name '*.[ch]' -o -name '*.cu' -o -name '*.inc' ')' -print0 |
    xargs -0 grep -nHoE '^ *#include "[^"]+"' |
    sed -E 's/^([^:]+):[0-9]+: *#include "([^"]+)"/\1 \2/')

printf '%s\n' "$includes" | awk -v plan="$plan" '
    function module(path) {
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
    }
    {
        from = module($1); to = module($2)
        if (!(from in known)) { print "a module that is not in the plan: " from; failed = 1 }
        else if (!((from, to) in allowed)) {
            print $1 " includes " $2 ", but " from "/ may not include " to "/"
            failed = 1
        }
    }
    END { exit failed }' >&2 || {
    echo 'scripts/check_layers.sh: includes must follow the plan at its top' >&2
    exit 1
}

circles=$(printf '%s\n' "$includes" | sed -E 's/\.(cu|[ch]|inc)( |$)/ /g' |
    awk '$1 != $2' | tsort 2>&1 >/dev/null | sed 's/^tsort: //' | grep -v '^-:' || true)
if [ -n "$circles" ]; then
    printf 'Pairs of files that include each other in a circle:\n%s\n' "$circles" >&2
    exit 1
fi
