#!/usr/bin/env bash
# Checks limits of length: sources of at most 700 lines, and a README.md of at most 200. Comments
# begin with their subject. Messages are printed by data/util/note.h, except for lines of progress,
# which a carriage return redraws, and for MPI's module, which is linked without it.
set -euo pipefail
cd "$(dirname "$0")/.."
find . '(' -name .git -o -path ./build -o -path ./runs -o -path ./datasets -o -path ./test/golden ')' \
    -prune -o -type f '(' -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cpp' -o -name '*.sh' \
    -o -name '*.py' -o -path ./README.md ')' -exec wc -l {} + |
    awk '$2 == "total" { next }
        { limit = $2 == "./README.md" ? 200 : 700; name = substr($2, 3) }
        $1 > limit { print name ": " $1 " lines, more than " limit >"/dev/stderr"; failed = 1 }
        END { exit failed }'
clauses=$(grep -rnE '^[[:space:]]*(/\*|//) (What|Whether|Who|Where|Of|Those|That) ' train.c kernels model data \
    test --include='*.c' --include='*.h' --include='*.cu' --include='*.inc' || true)
[ -z "$clauses" ] || {
    printf 'comments that open with a clause:\n%s\n' "$clauses" >&2
    exit 1
}
direct=$(grep -rnE '(printf|fput[cs]|fwrite)\(.*\<stderr\>' train.c kernels model data --include='*.c' \
    --include='*.cu' --exclude=mpi_module.c | grep -vF '\r' || true)
[ -z "$direct" ] || {
    printf 'messages that note() does not print:\n%s\n' "$direct" >&2
    exit 1
}
