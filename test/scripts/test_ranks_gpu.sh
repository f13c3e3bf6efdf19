#!/usr/bin/env bash
# Several ranks on emulated GPUs, over the fake NCCL: the same answer as one rank, also when
# training is resumed on other devices. Needs TRAIN, a program of an emulated build.
set -euo pipefail
cd "$(dirname "$0")/../.."

# shellcheck source=test/scripts/mpirun_here.sh
. test/scripts/mpirun_here.sh
export CUDA_EMULATOR_DEVICES=4

cat >"$folder/tiny.json" <<END
{"run_dir": "$folder", "device": "cuda", "model": {"n_layer": 2, "n_head": 2, "n_embd": 32},
 "data": {"seq_len": 16}, "optimizer": {"lr": 3e-4, "warmup_steps": 2},
 "train": {"steps": 6, "micro_batch_size": 1, "batch_tokens": 192},
 "checkpoint": {"every": 3}, "eval": {"every": 3, "batches": 5}}
END

trains() { # RANKS NAME [FLAG ...]
    train "$@" || { cat "$folder/$2.out" >&2; fail "$2 on $1 ranks"; }
}
near_losses() { # A B BOUND
    near "$1" "$2" loss "$3"
    near "$1" "$2" val_loss "$3"
}

# Bounds: fp32 some units of 2^-24 of a loss of 5.5; 16 bits as in test_ranks.sh.
for precision in fp32:5e-6 bf16:5e-3 fp16:2e-3; do
    bound=${precision#*:} precision=${precision%:*}
    trains 1 "one-$precision" --set precision="$precision"
    for ranks in 2 3 4; do
        trains "$ranks" "r$ranks-$precision" --set precision="$precision"
        near_losses "one-$precision" "r$ranks-$precision" "$bound"
    done
    # A fake NCCL that adds in the order of ranks, as the host does: the same run, the same bits.
    trains 2 "again-$precision" --set precision="$precision" --set ranks.shard=none
    cmp "$folder/r2-$precision/checkpoints/step-00000006/model.safetensors" \
        "$folder/again-$precision/checkpoints/step-00000006/model.safetensors"
    # The micro-batches between the first and the last of a step are graphs.
    trains 2 "launched-$precision" --set precision="$precision" --set cuda_graphs=false
    cmp "$folder/r2-$precision/checkpoints/step-00000006/model.safetensors" \
        "$folder/launched-$precision/checkpoints/step-00000006/model.safetensors"
    # From three GPUs to two CPUs and to one GPU.
    rm -r "$folder/r3-$precision/checkpoints/step-00000006"
    cp -r "$folder/r3-$precision" "$folder/cpu-$precision"
    trains 2 "cpu-$precision" --set precision="$precision" --set device=cpu --resume
    near_losses "one-$precision" "cpu-$precision" "$bound"
    trains 1 "r3-$precision" --set precision="$precision" --resume
    near_losses "one-$precision" "r3-$precision" "$bound"
done

# Rank 0 times matmuls for all. A later run takes them from the store, a resumed one from its folder.
same_weights() { # A B
    cmp "$folder/$1/checkpoints/step-00000006/model.safetensors" \
        "$folder/$2/checkpoints/step-00000006/model.safetensors"
    cases=$((cases + 1))
}
export XDG_CACHE_HOME=$folder/fresh
for name in timed stored; do trains 2 "$name" --set precision=bf16; done
[ "$(grep -c ' matmuls timed in ' "$folder/timed.out")" = 1 ] || fail "timed: not by one rank"
grep -q ' matmuls timed in ' "$folder/stored.out" && fail "stored: timed again"
same_weights timed stored
rm -r "$XDG_CACHE_HOME" "$folder/timed/checkpoints/step-00000006"
trains 2 timed --set precision=bf16 --resume
grep -q ' matmuls timed in ' "$folder/timed.out" && fail "timed: timed again when resumed"
same_weights timed stored

# More ranks than GPUs.
export CUDA_EMULATOR_DEVICES=1
train 2 few && fail "two ranks shared a GPU"
grep -q 'GPU' "$folder/few.out" || { cat "$folder/few.out" >&2; exit 1; }
export CUDA_EMULATOR_DEVICES=2
for seconds in 10m 0; do
    MANTISSA_NCCL_TIMEOUT=$seconds train 2 seconds && fail "MANTISSA_NCCL_TIMEOUT=$seconds is taken"
    grep -q "$seconds is not a number of seconds" "$folder/seconds.out" ||
        { cat "$folder/seconds.out" >&2; exit 1; }
done
echo "test_ranks_gpu.sh: $cases cases: ok"
