#!/usr/bin/env bash
# Includes point down only: data/ and kernels/ know nobody else, model/ knows both, not train.c.
set -euo pipefail
cd "$(dirname "$0")/.."
upward=$(grep -rnE '#include "(model|kernels|test)/' data ||
    true)$(grep -rnE '#include "(model|data|test)/' kernels ||
    true)$(grep -rnE '#include "(train|test)' model || true)
if [ -n "$upward" ]; then
    printf 'An include that points upwards:\n%s\n' "$upward" >&2
    exit 1
fi
