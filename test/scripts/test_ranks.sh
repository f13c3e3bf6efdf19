#!/usr/bin/env bash
# Several ranks through the mpirun that is here: the same answer as one process, whatever happens on
# the way. Needs TRAIN, a program with train_mpi.so beside it. --short: two ranks once, resumed once.
# shellcheck disable=SC2012 # the names are our own
set -euo pipefail
cd "$(dirname "$0")/../.."

# shellcheck source=test/scripts/mpirun_here.sh
. test/scripts/mpirun_here.sh
export OMPI_MCA_btl_base_warn_component_unused=0

# A model with all kinds of parameters: layers, tied head, vectors; 24 steps of 1536 tokens for 1,
# 2, 3 or 4 ranks.
cat >"$folder/tiny.json" <<END
{"run_dir": "$folder", "device": "cpu", "model": {"n_layer": 3, "n_head": 3, "n_embd": 72},
 "data": {"seq_len": 64}, "optimizer": {"lr": 3e-4, "warmup_steps": 4},
 "train": {"steps": 24, "micro_batch_size": 2, "batch_tokens": 1536},
 "eval": {"every": 12, "batches": 5}}
END

expect() { # expect NAME TEXT: it was printed exactly once
    local times
    times=$(sed -z 's/\n    / /g' "$folder/$1.out" | grep -c -- "$2" || true)
    [ "$times" = 1 ] || { cat "$folder/$1.out" >&2; fail "$1: \"$2\" was said $times times"; }
    cases=$((cases + 1))
}

equal() { # equal A B: weights and moments of the last checkpoint, bit for bit
    local a b
    a=$(ls -d "$folder/$1"/checkpoints/step-* | tail -1)
    b=$(ls -d "$folder/$2"/checkpoints/step-* | tail -1)
    cmp "$a/model.safetensors" "$b/model.safetensors" || fail "$1 and $2: other weights"
    # Shards may be split differently; everything else in them is the same.
    if [ -e "$a/optimizer-00001-of-00002.safetensors" ] &&
        [ -e "$b/optimizer-00001-of-00002.safetensors" ]; then
        for i in 1 2; do
            cmp "$a/optimizer-0000$i-of-00002.safetensors" "$b/optimizer-0000$i-of-00002.safetensors" ||
                fail "$1 and $2: other moments"
        done
    fi
    cases=$((cases + 1))
}

same_answer() {
    local precision=$1 bound=$2 ranks
    train 1 "one-$precision" --set precision="$precision" || fail "one-$precision"
    for ranks in 2 3 4; do
        train "$ranks" "r$ranks-$precision" --set precision="$precision" || {
            cat "$folder/r$ranks-$precision.out" >&2
            fail "$ranks ranks in $precision"
        }
        near "one-$precision" "r$ranks-$precision" loss "$bound"
        near "one-$precision" "r$ranks-$precision" val_loss "$bound"
        near "one-$precision" "r$ranks-$precision" loss_scale 0
    done
}

if [ "${1:-}" = --short ]; then # two ranks near one; stopped and resumed, the same bits
    train 1 one --set precision=bf16 || fail one
    train 2 two --set precision=bf16 --set checkpoint.every=12 --set checkpoint.keep=9 || fail two
    near one two loss 5e-3
    cp -r "$folder/two" "$folder/resumed"
    rm -r "$folder/resumed/checkpoints/step-00000024"
    train 2 resumed --set precision=bf16 --resume || fail resumed
    equal two resumed
    echo "test_ranks.sh --short: $cases cases: ok"
    exit
fi

# fp32: sums in another order, some units of 2^-24 of a loss of 5, after 24 steps of Adam. 16 bits:
# an activation that rounds the other way, by 2^-8 or 2^-11 of it.
same_answer fp32 2e-5
same_answer bf16 5e-3
same_answer fp16 2e-3

# A repeated run gives the same bits, with samples on rank 0 between the steps, too, and so does an
# optimizer that is not sharded.
train 2 again --set precision=bf16 --set sample.every=8 --set sample.tokens=2 || fail "samples"
expect again 'sample at step 8 ---'
equal r2-bf16 again
train 2 whole --set precision=bf16 --set ranks.shard=none && equal r2-bf16 whole
train 2 whole16 --set precision=fp16 --set ranks.shard=none && equal r2-fp16 whole16
# Moments in 8 bits: ranks divide whole blocks, and the last one has the rest.
for ranks in 2 3; do
    coded=(--set optimizer.moments=int8 --set optimizer.min_8bit_size=0 --set model.n_embd=80
        --set model.n_head=4 --set model.n_inner=256) # 260 blocks in a layer
    train "$ranks" "coded$ranks" "${coded[@]}"
    train "$ranks" "coded$ranks-whole" "${coded[@]}" --set ranks.shard=none
    equal "coded$ranks" "coded$ranks-whole"
done
train 2 kept --set precision=bf16 --set weights.copy=kept && equal r2-bf16 kept
train 2 cast --set precision=bf16 --set weights.copy=cast && equal r2-bf16 cast
train 2 lower --set precision=bf16 --set ranks.gradients=lower || fail "lower gradients"
near r2-bf16 lower loss 2e-2 # each gradient is rounded once more

# fp16 with a scale that overflows at first: all ranks skip together, like one process.
for ranks in 1 2 3; do
    train "$ranks" "skips$ranks" --set precision=fp16 --set loss_scale.init_scale=4294967296 ||
        fail "skips on $ranks ranks"
done
[ "$(values skips1 skipped | grep -c true)" -gt 2 ] || fail "nothing was skipped"
for ranks in 2 3; do
    cmp <(values skips1 skipped) <(values "skips$ranks" skipped) || fail "$ranks ranks skip others"
    near skips1 "skips$ranks" loss_scale 0
done

# Stopped and resumed: with the same number of ranks the same bits; with another, the same samples.
train 2 halves --set precision=bf16 --set checkpoint.every=12 --set checkpoint.keep=9 || fail halves
rm -r "$folder/halves/checkpoints/step-00000024"
for ranks in 1 2 3 4; do
    cp -r "$folder/halves" "$folder/on$ranks"
    train "$ranks" "on$ranks" --set precision=bf16 --set checkpoint.every=12 --resume ||
        { cat "$folder/on$ranks.out" >&2; fail "resumed on $ranks"; }
    near r2-bf16 "on$ranks" loss 5e-3
done
equal r2-bf16 on2
train 1 alone --set precision=bf16 --set checkpoint.every=12 --set checkpoint.keep=9 || fail alone
rm -r "$folder/alone/checkpoints/step-00000024"
train 3 alone --set precision=bf16 --resume || fail "3 ranks from 1"
near one-bf16 alone loss 5e-3

# With a larger batch, all numbers of ranks take the same samples, those after the checkpoint's.
for ranks in 1 2 3; do
    cp -r "$folder/halves" "$folder/wider$ranks"
    train "$ranks" "wider$ranks" --set precision=bf16 --set train.batch_tokens=3072 --resume ||
        { cat "$folder/wider$ranks.out" >&2; fail "a larger batch on $ranks"; }
    near wider1 "wider$ranks" loss 5e-3
    step=$(ls -d "$folder/wider$ranks"/checkpoints/step-* | tail -1)
    grep -q '"next_sample": 864,' "$step/trainer.json" || fail "next sample on $ranks ranks"
    cases=$((cases + 1))
done

# Checkpoints written while training waits have the same files. "halves" was not resumed, "waits" is
# its equal.
train 2 waits --set precision=bf16 --set checkpoint.every=12 --set checkpoint.background=false ||
    fail waits
for file in "$folder"/waits/checkpoints/step-00000012/*.safetensors*; do
    cmp "$file" "$folder/halves/checkpoints/step-00000012/${file##*/}" || fail "${file##*/}"
done
[ "$(find "$folder"/waits/checkpoints/step-00000012/optimizer-* | wc -l)" -eq 2 ] || fail "two files"

# A long run in which one rank fails: all ranks end within 30 s.
long() {
    local name=$1
    shift
    train 3 "$name" --set train.steps=100000 --set checkpoint.every=20 --set eval.every=0 \
        --set log.every=1000 "$@" &
    long=$!
    for ((i = 0; i < 300; i++)); do
        if ls -d "$folder/$name"/checkpoints/step-* >/dev/null 2>&1; then break; fi
        sleep 0.1
    done
    began=$(date +%s)
}
# Prints the process id of a rank, found by its launcher's variables.
rank_of() {
    local process
    for process in $(pgrep -f "$folder/tiny.json --set name=$1 "); do
        if tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$2"; then
            echo "$process"
            return
        fi
    done
    fail "$1: no rank $2"
}
ended() { # ended NAME STATUS: it ended in time
    local status=0
    wait "$long" || status=$?
    [ $(($(date +%s) - began)) -le 30 ] || fail "$1 took more than 30 s to end"
    [ "$status" = "$2" ] || { cat "$folder/$1.out" >&2; fail "$1 ended with $status, not $2"; }
    pgrep -f "$folder/tiny.json --set name=$1 " >/dev/null && fail "$1: some are left"
    cases=$((cases + 1))
}

long term
kill -TERM "$(rank_of term 2)"
ended term 143
expect term 'stopped by SIGTERM; continue with --resume'
train 2 term --set train.steps=100000 --set train.minutes=0.01 --set eval.every=0 --resume ||
    { cat "$folder/term.out" >&2; fail "not resumed after SIGTERM"; }
expect term 'train.minutes (0.01) are over'

# ./train --ranks 2 | head: mpirun ends all ranks after a few more lines, so they save and stop
# before.
status=0
timeout 60 "$TRAIN" --ranks 2 --config "$folder/tiny.json" --set name=piped --set eval.every=0 \
    --set train.steps=1000000 --set log.every=20 --set checkpoint.every=0 2>&1 | head -20 >/dev/null ||
    status=${PIPESTATUS[0]}
[ "$status" = 141 ] || fail "| head ended with $status, not 141"
ls -d "$folder"/piped/checkpoints/step-* >/dev/null || fail "| head left no checkpoint"
cases=$((cases + 1))

long killed
kill -KILL "$(rank_of killed 1)"
ended killed 137
expect killed "a rank was ended by signal 9 "
train 3 killed --set train.steps=100000 --set train.minutes=0.01 --set eval.every=0 --resume ||
    { cat "$folder/killed.out" >&2; fail "not resumed after kill -9"; }

# Differing ranks are named, once. Rank 1 evaluates a shell command first; the `a : b` of mpirun
# would do, but crashes Open MPI 5.0.7 (its issue 13303).
cat >"$folder/rank_1.sh" <<'END'
#!/bin/sh
first=$1 && shift
if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ]; then eval "$first"; fi
exec "$@"
END
chmod +x "$folder/rank_1.sh"
program=$(realpath "$TRAIN")
differ() { # differ NAME SHELL_COMMAND TEXT [FLAG ...]
    local name=$1 first=$2 text=$3
    shift 3
    mpirun_here -n 2 "$folder/rank_1.sh" "$first" "$program" \
        --config "$folder/tiny.json" --set name="$name" "$@" >"$folder/$name.out" 2>&1 &&
        fail "$name: they trained together"
    expect "$name" "$text"
}
differ seeds 'set -- "$@" --set seed=7' 'rank 1: seed is 7 here, but 1 on rank 0'
head -c 40000 README.md >"$folder/a.txt"
mkdir -p "$folder/here" "$folder/there"
"$PREPARE" "$folder/a.txt" --out "$folder/here/x" --tokenizer bytes >/dev/null 2>&1 || fail prepare
cp "$folder"/here/* "$folder/there"
shard=$(ls "$folder"/there/x_train*.bin | head -1)
printf 'Z' | dd of="$shard" bs=1 seek=5000 conv=notrunc 2>/dev/null
cd "$folder/here"
differ data "cd $folder/there" 'rank 1: data.train, .*the shards are not those of rank 0' \
    --set data.train='x_train*.bin' --set eval.every=0

# Relative run directories of processes that start in different folders.
differ apart "cd $folder/there" 'rank 1: .*was written by rank 0 and is not there' \
    --set run_dir=runs
cd "$OLDPWD"

# Replicas that would compute different bits: the second is limited to the oldest CPU level.
if [ "$(uname -m)" = x86_64 ] && grep -q avx2 /proc/cpuinfo; then
    differ levels 'export MANTISSA_CPU=v2' 'rank 1: how this rank trains' --set ranks.shard=none
fi

alone() { # alone NAME: its message, whose further lines are indented, is the only output
    [ "$(grep -vc '^  ' "$folder/$1.out")" -eq 1 ] || { cat "$folder/$1.out" >&2; fail "$1: more lines"; }
}

# An error that all ranks find is printed once; so is a batch that cannot be split evenly.
train 2 wrong --set optimizer.lr=-1 && fail "lr=-1"
expect wrong 'optimizer.lr is'
alone wrong
train 4 uneven --set train.batch_tokens=1280 && fail "1280 tokens for 4 ranks"
expect uneven 'train.batch_tokens is 1280, but 4 ranks take a multiple of 512'
alone uneven

# Open MPI connects rank 0's output to a terminal, even if mpirun's output is a file.
TERM=xterm mpirun_here -n 2 "$TRAIN" --config "$folder/tiny.json" --set name=plain \
    >"$folder/plain.out" 2>&1 || fail "plain"
grep $'\033' "$folder/plain.out" >&2 && fail "a bar in a file"
expect plain '^step  24/24 | .* lr '

# A disk that is full for one rank, emulated by a limit on the size of its files. MPI_Init of Open
# MPI 5 writes larger ones, so the limit is set once the rank opens its config, a pipe.
cat >"$folder/full.sh" <<END
#!/bin/bash
config=$folder/tiny.json
if [ "\${OMPI_COMM_WORLD_RANK:-\$PMI_RANK}" = 1 ]; then
    config=$folder/pipe.json
    { exec 3>"\$config" && prlimit --pid \$\$ --fsize=51200 && cat "$folder/tiny.json" >&3; } &
fi
exec "$program" --config "\$config" --set name=full --set checkpoint.every=8 \
    --set train.steps=20 "\$@"
END
chmod +x "$folder/full.sh"
mkfifo "$folder/pipe.json"
mpirun_here -n 2 "$folder/full.sh" --set checkpoint.on_error=continue >"$folder/full.out" 2>&1 &&
    fail "the last checkpoint was not saved"
expect full 'warning: step 8 was not saved: rank 1: .*optimizer-00002-of-00002'
expect full 'warning: step 16 was not saved: rank 1'
grep -q "^step 20: validation" "$folder/full.out" || fail "training did not go on"
[ -z "$(ls -A "$folder/full/checkpoints")" ] || fail "half a checkpoint was left"

# The output of the other ranks goes to files, if at all.
train 2 logs --log-ranks || fail "--log-ranks"
[ "$(grep -c 'mantissa: training' "$folder/logs.out")" = 1 ] || fail "not rank 0 alone said it"
grep -q 'mantissa: training' "$folder/logs/ranks/rank-00001.txt" || fail "no log of rank 1"
train 2 logs --log-ranks && fail "a run was overwritten"
grep -q 'mantissa: training' "$folder/logs/ranks/rank-00001.txt" || fail "the log of rank 1 is gone"

echo "test_ranks.sh: $cases cases: ok"
