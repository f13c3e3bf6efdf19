#!/usr/bin/env bash
# What a checkpoint of GPT-2 124M (1.5 GB) costs on this machine's CPU: how long training stops
# where it waits for the disk and where it is written in the background, and at what speed it is
# written beside a copy of as many bytes by dd. Medians of the rounds, which take turns.
#   scripts/bench_checkpoint.sh [ROUNDS]      3
# Needs TRAIN, by default ./train, and 5 GB in $TMPDIR, which should be a disk, not memory.
set -euo pipefail
cd "$(dirname "$0")/.."
train=$(realpath "${TRAIN:-./train}") rounds=${1:-3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/save.json" <<END
{"run_dir": "$folder", "device": "cpu", "model": {"preset": "gpt2", "vocab_size": 50257},
 "data": {"train": "tales", "val": "", "tokenizer": "bytes", "seq_len": 64},
 "optimizer": {"warmup_steps": 0}, "train": {"steps": 40, "micro_batch_size": 1},
 "eval": {"every": 0}, "sample": {"every": 0}, "checkpoint": {"every": 20, "keep": 1}}
END

# NAME SETTING: trains, appends the seconds that training stopped and writing took to NAME.*
save() {
    "$train" --config "$folder/save.json" --set name="$1" --set "$2" >"$folder/said" 2>&1
    sed -n 's/.*stopped for \([0-9.]*\) s.*/\1/p' "$folder/said" >>"$folder/$1.stop"
    sed -n 's/.*writing took \([0-9.]*\) s.*/\1/p' "$folder/said" >>"$folder/$1.write"
    bytes=$(cat "$folder/$1"/checkpoints/step-*/*.safetensors | wc -c)
    rm -rf "${folder:?}/$1"
}
copy() {
    local began now
    began=$(date +%s%N)
    dd if=/dev/zero of="$folder/copy" bs=1M count=$((bytes / 1000000)) conv=fsync status=none
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
    'BEGIN { print int(b / 1e6) * 1.048576 / s }')
row() {
    awk -v name="$1" -v stop="$2" -v write="$3" -v b="$bytes" -v dd="$dd" -v waiting="$stop" \
        'BEGIN { printf "%-16s training stops %6.2f s (%.2f)   written at %5.0f MB/s (%.2f of dd)\n",
                 name, stop, stop / waiting, b / 1e6 / write, b / 1e6 / write / dd }'
}
row "waiting" "$stop" "$(median waiting.write)"
row "in background" "$(median background.stop)" "$(median background.write)"
printf '%-16s %55.0f MB/s\n' "dd conv=fsync" "$dd"
echo "aims: training stops at most 0.40 s and 0.10 of waiting; 0.9 of dd"
