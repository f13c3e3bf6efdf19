#!/usr/bin/env bash
# Measures the start-up time of GPT-2 124M on this machine's CPU, with files in the page cache: from
# the command to the first step of a new run and of a resumed one, and to a sample's first token.
# Medians, in seconds.
#   scripts/bench_start.sh [ROUNDS]      5
# Needs TRAIN, by default ./train, and 4 GB in $TMPDIR.
set -euo pipefail
cd "$(dirname "$0")/.."
train=$(realpath "${TRAIN:-./train}") rounds=${1:-5}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/start.json" <<END
{"run_dir": "$folder", "device": "cpu", "model": {"preset": "gpt2", "vocab_size": 50257},
 "data": {"train": "tales", "val": "", "tokenizer": "bytes", "seq_len": 64},
 "optimizer": {"warmup_steps": 0}, "train": {"steps": 1, "micro_batch_size": 1},
 "eval": {"every": 0}, "sample": {"every": 0}}
END

# SECONDS FILE TEXT COMMAND ...: appends the seconds until COMMAND prints TEXT to FILE, then ends it
wait_for() {
    local file=$1 text=$2 began line="" part child
    shift 2
    began=$(date +%s%N)
    exec {output}< <(exec "$@" 2>"$folder/said")
    child=$!
    while [[ $line != *"$text"* ]]; do
        IFS= read -r -n 1 -d '' -u "$output" part || { cat "$folder/said" >&2; exit 1; }
        line+=$part
    done
    awk -v began="$began" -v now="$(date +%s%N)" \
        'BEGIN { printf "%.2f\n", (now - began) / 1e9 }' >>"$file"
    kill "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
    exec {output}<&-
}
banner_end="stays below it" # the line before the first step
"$train" --config "$folder/start.json" --set name=made >/dev/null 2>&1
for ((i = 0; i < rounds; i++)); do
    wait_for "$folder/new" "$banner_end" "$train" --config "$folder/start.json" --set name="new$i"
    wait_for "$folder/resumed" "$banner_end" "$train" --config "$folder/start.json" \
        --set name=made --set train.steps=9 --resume
    wait_for "$folder/sampled" "Once" "$train" --sample Once --tokens 2 --from "$folder/made" \
        --device cpu
    rm -rf "$folder/new$i"
done
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
printf 'first step begins   %5s s   aim 1.5\n' "$(median "$folder/new")"
printf 'resumed             %5s s   aim 2.5\n' "$(median "$folder/resumed")"
printf 'first of a sample   %5s s   aim 1.0\n' "$(median "$folder/sampled")"
