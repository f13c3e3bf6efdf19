#!/usr/bin/env bash
# Measures the cost of an endless loop beside a run: ms per step of configs/fp32.json on all cores,
# alone and with the loop, in turns; medians. Also measures threads that spin while they wait, which
# is GNU OpenMP's default and which ./train prevents.
#   scripts/bench_busy.sh [ROUNDS]      5 rounds take two minutes on two cores
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
case $rounds in
'' | *[!0-9]* | 0) echo "usage: scripts/bench_busy.sh [ROUNDS]" >&2; exit 2 ;;
esac
unset OMP_WAIT_POLICY GOMP_SPINCOUNT
folder=$(mktemp -d)
loop=
trap '[ -z "$loop" ] || kill "$loop"; rm -rf "$folder"' EXIT

median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

# Appends the median ms per step of a short run to the file $1.
steps() {
    rm -rf "$folder/run"
    "${TRAIN:-./train}" --config configs/fp32.json --device cpu --set run_dir="$folder" \
        --set name=run --set train.steps=14 --set optimizer.warmup_steps=0 --set eval.every=0 \
        --set sample.every=0 --set checkpoint.every=0 >"$folder/log" 2>&1 ||
        { cat "$folder/log" >&2; exit 1; }
    sed -n 's/.*"step_ms": \([0-9.]*\),.*/\1/p' "$folder/run/metrics.jsonl" | tail -n +3 |
        median >>"$1"
}

for ((round = 0; round < rounds; round++)); do
    for spin in "" 300000; do
        export GOMP_SPINCOUNT=$spin
        [ -n "$spin" ] || unset GOMP_SPINCOUNT
        steps "$folder/alone$spin"
        sh -c 'while :; do :; done' &
        loop=$!
        steps "$folder/busy$spin"
        kill "$loop"
        wait "$loop" 2>/dev/null || true
        loop=
    done
done

printf '%-34s %8s %8s %6s\n' "ms per step, $(nproc) cores" alone busy ratio
for spin in "" 300000; do
    alone=$(median <"$folder/alone$spin") busy=$(median <"$folder/busy$spin")
    name="as it is"
    [ -z "$spin" ] || name="with threads that spin (300000)"
    awk -v name="$name" -v alone="$alone" -v busy="$busy" \
        'BEGIN { printf "%-34s %8.1f %8.1f %6.2f\n", name, alone, busy, busy / alone }'
done
