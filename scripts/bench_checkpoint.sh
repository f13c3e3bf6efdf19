#!/usr/bin/env bash
# Measures the cost of a checkpoint of GPT-2 124M (1.5 GB): how long training stops when it waits
# for the disk and when it writes in the background, the slowdown of the steps after it, and its
# write speed compared with a copy of as many bytes by dd. Medians of the rounds, which alternate.
#   scripts/bench_checkpoint.sh [ROUNDS]      3
# Needs TRAIN, by default ./train, and 6 GB in $TMPDIR, which should be a disk, not memory. DEVICE
# is "cpu" or "cuda", MODEL another model, as in a config.
set -euo pipefail
cd "$(dirname "$0")/.."
train=$(realpath "${TRAIN:-./train}") rounds=${1:-3} device=${DEVICE:-cpu}
model=${MODEL:-'{"preset": "gpt2", "vocab_size": 50257}'}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/save.json" <<END
{"run_dir": "$folder", "device": "$device", "model": $model,
 "data": {"train": "tales", "val": "", "tokenizer": "bytes", "seq_len": 64},
 "optimizer": {"warmup_steps": 0}, "train": {"steps": 60, "micro_batch_size": 1},
 "eval": {"every": 0}, "sample": {"every": 0}, "checkpoint": {"every": 20, "keep": 9},
 "log": {"every": 1000}}
END

# NAME SETTING: trains and appends to NAME.* the seconds that training stopped, that writing took,
# and that the steps after it took beyond those before it.
save() {
    "$train" --config "$folder/save.json" --set name="$1" --set "$2" >"$folder/log" 2>&1
    sed -n 's/^saving \([0-9]*\) check.*paused training for \([0-9.]*\) s.*/\1 \2/p' "$folder/log" |
        awk '{ print $2 / $1 }' >>"$folder/$1.stop"
    sed -n 's/^saving \([0-9]*\) check.*writing took \([0-9.]*\) s.*/\1 \2/p' "$folder/log" |
        awk '{ print $2 / $1 }' >>"$folder/$1.write"
    sed -n 's/.*"step": \([0-9]*\),.*"step_ms": \([0-9.]*\),.*/\1 \2/p' \
        "$folder/$1/metrics.jsonl" | sort -n -k2 | awk '
        $1 > 5 && $1 <= 20 { before[++n] = $2 }
        $1 > 20 && $1 <= 40 { after += $2 }
        END { printf "%.3f\n", (after - 20 * before[int((n + 1) / 2)]) / 1e3 }' >>"$folder/$1.slower"
    bytes=$(cat "$folder/$1"/checkpoints/step-00000020/*.safetensors | wc -c)
    rm -rf "${folder:?}/$1"
}
copy() {
    local began now
    began=$(date +%s%N)
    dd if=/dev/zero of="$folder/copy" bs=1M count=$((bytes / 1048576 + 1)) conv=fsync status=none
    now=$(date +%s%N)
    rm -f "$folder/copy"
    awk -v t=$((now - began)) 'BEGIN { print t / 1e9 }' >>"$folder/copy.write"
}
for ((i = 0; i < rounds; i++)); do
    save waiting checkpoint.background=false
    copy
    save background checkpoint.background=true
done
median() { sort -n "$folder/$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
stop=$(median waiting.stop)
dd=$(awk -v s="$(median copy.write)" -v b="$bytes" \
    'BEGIN { print (int(b / 1048576) + 1) * 1.048576 / s }')
row() { # TEXT NAME
    awk -v text="$1" -v stop="$(median "$2.stop")" -v slower="$(median "$2.slower")" \
        -v write="$(median "$2.write")" -v b="$bytes" -v dd="$dd" -v waiting="$stop" \
        'BEGIN { printf "%-14s stops %.2f s (%.2f)  later steps %+.2f s  %5.0f MB/s (%.2f of dd)\n",
                 text, stop, stop / waiting, slower, b / 1e6 / write, b / 1e6 / write / dd }'
}
row "waiting" waiting
row "in background" background
printf '%-14s %47.0f MB/s\n' "dd conv=fsync" "$dd"
echo "aims: training stops at most 0.40 s and 0.10 of waiting; 0.9 of dd"
