#!/usr/bin/env bash
# Which lines of the CUDA kernels do the tests on the emulated GPU reach? Lists those that they do
# not; exit status 1 if there are any but the ones that scripts/cuda_coverage.expected explains.
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
counts=$(mktemp -d)
trap 'rm -rf "$counts"' EXIT
for source in kernels/cuda/*.cu; do
    (cd "$counts" && gcov --preserve-paths --relative-only --source-prefix "$OLDPWD" \
        --object-directory "$OLDPWD/$out/$(dirname "$source")" \
        "$OLDPWD/$out/${source%.cu}.o" >/dev/null 2>&1) || true
done
cat "$counts"/*kernels#cuda#*.gcov | awk -F: '
    $2 + 0 == 0 { if ($3 == "Source") source = $4; next }
    {
        gsub(/[ *]/, "", $1)
        at = source ":" $2
        if ($1 == "-" || $1 == "") next
        text = $0
        sub(/^[^:]*:[^:]*:/, "", text)
        all[at] = text
        if ($1 !~ /^[#=]/) reached[at] = 1
    }
    END {
        for (at in all) {
            lines++
            if (at in reached) hit++
            else print at ":" all[at] > "/dev/stderr"
        }
        printf "%d of %d lines of the CUDA kernels are reached\n", hit, lines
    }' 2>"$counts/missed"
sort -t: -k1,1 -k2,2n "$counts/missed" >"$counts/sorted"
unexplained=0
while IFS= read -r line; do
    text=$(printf '%s' "$line" | cut -d: -f3- | sed 's/^ *//; s/ *$//')
    if ! grep -qxF -- "$text" scripts/cuda_coverage.expected; then
        printf '%s\n' "$line"
        unexplained=1
    fi
done <"$counts/sorted"
exit $unexplained
