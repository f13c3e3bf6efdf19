#!/usr/bin/env bash
# Checks limits of length: sources of at most 700 lines, and a README.md of at most 200.
set -euo pipefail
cd "$(dirname "$0")/.."
find . '(' -name .git -o -path ./build -o -path ./runs -o -path ./datasets -o -path ./test/golden ')' \
    -prune -o -type f '(' -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cpp' -o -name '*.sh' \
    -o -name '*.py' -o -path ./README.md ')' -exec wc -l {} + |
    awk '$2 == "total" { next }
        { limit = $2 == "./README.md" ? 200 : 700; name = substr($2, 3) }
        $1 > limit { print name ": " $1 " lines, more than " limit >"/dev/stderr"; failed = 1 }
        END { exit failed }'
