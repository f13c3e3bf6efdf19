#!/usr/bin/env bash
# Checks that the fallback for Criterion sees failures: builds planted.c, whose tests fail in every
# way, and compares what the runner prints. CC and CFLAGS as usual.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
read -r -a flags <<<"${CFLAGS:--O1}"
"${CC:-cc}" "${flags[@]}" -std=gnu11 -D_GNU_SOURCE -I. -o "$work/planted" planted.c runner.c -lm

bad=0
expect() { # STATUS LINE ARGUMENTS ...: what running with these arguments must give
    local status=0
    "$work/planted" "${@:3}" >"$work/log" 2>&1 || status=$?
    if [ "$status" -ne "$1" ] || ! grep -qxF -- "$2" "$work/log" || grep -q NEVER "$work/log"; then
        echo "plain_criterion: with '${*:3}': status $status, expected $1 and the line: $2" >&2
        cat "$work/log" >&2
        bad=1
    fi
}
counts='Synthesis: Tested: 13 | Passing: 4 | Failing: 6 | Crashing: 3'
expect 1 "[====] $counts"
expect 1 "[====] $counts" --jobs 4 --share
expect 1 "went on" --filter '@(planted|none)/expect*'
expect 1 "[----]   3" --filter 'planted/assert*'
expect 1 "fini" --filter 'planted/assert*'
expect 0 "[====] Synthesis: Tested: 1 | Passing: 1 | Failing: 0 | Crashing: 0" --filter '*/pass'
expect 0 "[SKIP] for 2 reasons" --filter '*/skip'
expect 1 "no test matches x/*" --filter 'x/*'
expect 1 "[====] Synthesis: Tested: 1 | Passing: 0 | Failing: 0 | Crashing: 1" --filter '*/crash'
expect 0 "planted/hang" --list
expect 1 "[----]   always" --no-fork --filter '*/@(pass|fail)'
grep -q Aborted <("$work/planted" --filter '*/crash' 2>&1) || bad=1
exit "$bad"
