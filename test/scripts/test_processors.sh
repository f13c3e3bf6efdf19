#!/usr/bin/env bash
# Runs the program on other processors with qemu-user: five steps of quickstart on the oldest
# supported one and on one with AVX2, and a one-line error on an older one. Steps have 16 tokens,
# because qemu takes minutes for a thousand with FMA. TRAIN: the program.
set -euo pipefail
cd "$(dirname "$0")/../.."
qemu=$(command -v qemu-x86_64-static || command -v qemu-x86_64 || true)
if [ -z "$qemu" ] || [ "$(uname -m)" != x86_64 ]; then
    echo "skipped: other processors, because there is no qemu-x86_64 here"
    exit 0
fi
train=${TRAIN:-./train}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "test_processors.sh: $*" >&2; exit 1; }

# Sets how threads wait; otherwise the program would execute itself again, outside of qemu.
on() {
    GOMP_SPINCOUNT=1000 OMP_NUM_THREADS=2 timeout -s KILL 300 "$qemu" -cpu "$1" "$train" "${@:2}" \
        2>"$folder/error"
}

processors=(Nehalem:x86-64-v2 Westmere:x86-64-v2)
version=$("$qemu" --version | sed -n '1s/.*version \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
read -r major minor <<<"$version"
if [ "$major" -gt 7 ] || { [ "$major" -eq 7 ] && [ "$minor" -ge 2 ]; }; then
    processors+=(Haswell:x86-64-v3)
else
    echo "skipped: Haswell, because this qemu has no AVX2"
fi

for pair in "${processors[@]}"; do
    cpu=${pair%:*}
    on "$cpu" --config quickstart.json --set run_dir="$folder" --set name="$cpu" \
        --set train.micro_batch_size=1 --set data.seq_len=16 --set train.steps=5 --set optimizer.warmup_steps=0 --set eval.every=0 \
        --set sample.every=0 --set checkpoint.every=0 --set log.every=1 >"$folder/log" ||
        fail "$cpu: $(tail -n 3 "$folder/error")"
    grep -q "${pair#*:}" "$folder/log" || fail "$cpu: another level: $(grep device "$folder/log")"
    last=$(sed -n 's/^step *5\/5 | loss \([0-9.]*\) .*/\1/p' "$folder/log")
    awk -v loss="$last" 'BEGIN { exit !(loss > 1 && loss < 5.6) }' || fail "$cpu: loss $last"
    printf '  %-10s %s, loss %s after 5 steps\n' "$cpu" "${pair#*:}" "$last"
done
status=0
on core2duo --config quickstart.json >"$folder/log" || status=$?
[ "$status" -eq 2 ] || fail "core2duo: status $status: $(cat "$folder/error")"
sed -i -z 's/\n    / /g' "$folder/error" # breaks of a long line
[ "$(wc -l <"$folder/error")" -eq 1 ] || fail "core2duo: not one line: $(cat "$folder/error")"
grep -q 'this processor .* lacks instructions .*x86-64-v2' "$folder/error" ||
    fail "core2duo: $(cat "$folder/error")"
status=0
MANTISSA_CPU=v3 on Westmere --version >"$folder/log" || status=$?
[ "$status" -eq 2 ] || fail "v3 on Westmere: $(cat "$folder/error")"
grep -q 'MANTISSA_CPU=v3 needs AVX2' "$folder/error" ||
    fail "v3 on Westmere: $(cat "$folder/error")"
