#!/usr/bin/env bash
# Measures what a second process gains on this machine: GPT-2 124M, 4 micro-batches of 4 x 256 tokens
# a step, by one process with 2 threads and by two ranks with one thread each. Runs alternate;
# medians of the steps after the first.
#   scripts/bench_ranks.sh [ROUNDS] [PRECISION]      2, fp32
# Needs TRAIN, by default ./train, with train_mpi.so beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
train=$(realpath "${TRAIN:-./train}") rounds=${1:-2} precision=${2:-fp32}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/bench.json" <<END
{"run_dir": "$folder", "device": "cpu", "precision": "$precision",
 "model": {"preset": "gpt2", "vocab_size": 50257},
 "data": {"seq_len": 256}, "optimizer": {"lr": 1e-4},
 "train": {"steps": 4, "micro_batch_size": 4, "batch_tokens": 4096}, "eval": {"every": 0}}
END
[ -e "$(dirname "$train")/train_mpi.so" ] || { echo "skipped: no MPI here"; exit 0; }

# ROUND RANKS THREADS
run() {
    local name=$2-$1
    local flags=(--config "$folder/bench.json" --set name="$name" --set threads="$3")
    if [ "$2" -gt 1 ]; then flags=(--ranks "$2" "${flags[@]}"); fi
    "$train" "${flags[@]}" >"$folder/$name.out" 2>&1 || { cat "$folder/$name.out" >&2; exit 1; }
    sed -n 's/.*"step_ms": \([0-9.]*\).*/\1/p' "$folder/$name/metrics.jsonl" | tail -n +2 >>"$folder/$2.ms"
    grep 'waited for' "$folder/$name.out" || true
    rm -r "${folder:?}/$name"
}
for ((i = 0; i < rounds; i++)); do
    run "$i" 1 2
    run "$i" 2 1
done
median() {
    sort -n "$1" | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'
}
awk -v one="$(median "$folder/1.ms")" -v two="$(median "$folder/2.ms")" 'BEGIN {
    printf "1 process x 2 threads  %8.0f ms a step  %7.1f tokens/s\n", one, 4096e3 / one
    printf "2 ranks   x 1 thread   %8.0f ms a step  %7.1f tokens/s  %.3f of it\n", two, 4096e3 / two,
        one / two }'
