#!/usr/bin/env bash
# Lists the lines of the CUDA kernels that the tests on the emulated GPU do not reach. Exit status 1
# if there are any that scripts/cuda_coverage.expected does not explain.
#   scripts/cuda_coverage.sh [--keep]     --keep: report from the counts of the last run
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/emulated-coverage
if [ "${1:-}" != --keep ]; then
    make -j"$(nproc)" BUILD=emulated-coverage "$out/device_tests"
    find "$out" -name '*.gcda' -delete
    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive "$out/device_tests" --jobs "$(nproc)"
fi

# A line counts as reached if any instance of a template reached it.
report=$(mktemp)
trap 'rm -f "$report"' EXIT
for source in kernels/cuda/*.cu kernels/cuda/*/*.cu; do
    gcov --stdout --object-directory "$out/$(dirname "$source")" "$out/${source%.cu}.o" 2>/dev/null
done | awk -F: '
    { line = $0; gsub(/ /, "", $1) }
    $2 + 0 == 0 { if ($3 == "Source") source = $4; next }
    source !~ /^kernels\/cuda\// || $1 == "-" || $1 == "" { next }
    {
        at = sprintf("%s:%d", source, $2)
        if ($1 !~ /^[#=]/) reached[at] = 1
        sub(/^[^:]*:[^:]*:[ \t]*/, "", line)
        all[at] = line
    }
    END {
        for (at in all) {
            lines++
            if (at in reached) hit++
            else print at ":" all[at]
        }
        printf "%d of %d lines of the CUDA kernels are reached\n", hit, lines
    }' | sort -t: -k1,1 -k2,2n >"$report"
unexplained=0
while IFS=: read -r file number text; do
    if ! grep -qxF -- "$file: $text" scripts/cuda_coverage.expected; then
        printf '%s:%s: %s\n' "$file" "$number" "$text"
        unexplained=1
    fi
done < <(grep -v 'are reached$' "$report")
grep 'are reached$' "$report"
exit $unexplained
