#!/usr/bin/env bash
# Prints how many lines of each module the tests reach on the CPU. The last run of
# scripts/cuda_coverage.sh has counted those of the CUDA kernels.
#   scripts/coverage.sh [--keep]     --keep: report from the counts of the last run
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/coverage
if [ "${1:-}" != --keep ]; then
    make -j"$(nproc)" BUILD=coverage all "$out/tests"
    find "$out" -name '*.gcda' -delete
    # Tests that limit file sizes cannot write counts, so gcov reports errors and full_disk fails.
    TRAIN=$out/train PREPARE=$out/prepare COMPARE=$out/compare OMP_NUM_THREADS=2 \
        OMP_WAIT_POLICY=passive "$out/tests" --jobs "$(nproc)" 2> >(grep -v '^profiling:' >&2) ||
        echo "coverage.sh: some tests failed, so some lines may be missing" >&2
fi

# A line counts as reached if any CPU level or any inlined copy of it was.
printf '%-20s %8s %8s %7s\n' module lines reached %
find "$out" -name '*.gcno' ! -path '*/test/*' -print0 | xargs -0 gcov --stdout 2>/dev/null | awk -F: '
    { gsub(/ /, "", $1) }
    $2 + 0 == 0 { if ($3 == "Source") source = $4; next }
    source ~ /^\/|^test\// || $1 == "-" || $1 == "" { next }
    {
        module = source
        if (!sub(/\/[^\/]*$/, "", module)) module = "."
        at = source ":" $2
        if (!(at in known)) { known[at] = 1; lines[module]++; lines["total"]++ }
        if ($1 !~ /^[#=]/ && !(at in hit)) { hit[at] = 1; reached[module]++; reached["total"]++ }
    }
    END {
        for (module in lines)
            printf "%-20s %8d %8d %7.1f\n", module, lines[module], reached[module],
                100 * reached[module] / lines[module]
    }' | sort
if [ -d build/emulated-coverage ]; then
    scripts/cuda_coverage.sh --keep | grep 'are reached$'
else
    echo "kernels/cuda: run make cuda-coverage first"
fi
