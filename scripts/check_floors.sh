#!/usr/bin/env bash
# Includes point down only: data/ and kernels/ know nobody else, model/ knows both, not train.c, nor
# model/lab/, but for the tables of a dry run.
set -euo pipefail
cd "$(dirname "$0")/.."
upward=$(grep -rnE '#include "(model|kernels|test)/' data ||
    true)$(grep -rnE '#include "(model|data|test)/' kernels ||
    true)$(grep -rnE '#include "(train|test)' model ||
    true)$(grep -nE '#include "model/lab/' model/*.[ch] |
    grep -v '^model/run\.c:.*memory_report' || true)
if [ -n "$upward" ]; then
    printf 'An include that points upwards:\n%s\n' "$upward" >&2
    exit 1
fi
