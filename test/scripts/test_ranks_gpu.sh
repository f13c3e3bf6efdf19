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

train() { # train RANKS NAME [FLAG ...]
    local ranks=$1 name=$2
    shift 2
    local flags=(--config "$folder/tiny.json" --set name="$name" "$@")
    if [ "$ranks" -gt 1 ]; then flags=(--ranks "$ranks" "${flags[@]}"); fi
    timeout 120 "$TRAIN" "${flags[@]}" >"$folder/$name.out" 2>&1 || {
        cat "$folder/$name.out" >&2
        echo "test_ranks_gpu.sh: $name on $ranks ranks failed" >&2
        exit 1
    }
}

near() { # near A B BOUND: of losses, in training and validation
    paste <(sed -n 's/.*_\{0,1\}loss": \([^,}]*\).*/\1/p' "$folder/$1/metrics.jsonl") \
        <(sed -n 's/.*_\{0,1\}loss": \([^,}]*\).*/\1/p' "$folder/$2/metrics.jsonl") |
        awk -v bound="$3" -v what="$1 $2" '
            { d = $1 - $2; if (d < 0) d = -d; if (NF != 2) d = 1; if (d > worst) worst = d }
            END { if (NR != 8 || worst > bound) { print what, NR, worst; exit 1 } }' >&2 ||
        { echo "test_ranks_gpu.sh: $1 and $2 are not near" >&2; exit 1; }
}

# Bounds: fp32 some units of 2^-24 of a loss of 5.5; 16 bits as in test_ranks.sh.
for precision in fp32:5e-6 bf16:5e-3 fp16:2e-3; do
    bound=${precision#*:} precision=${precision%:*}
    train 1 "one-$precision" --set precision="$precision"
    for ranks in 2 3 4; do
        train "$ranks" "r$ranks-$precision" --set precision="$precision"
        near "one-$precision" "r$ranks-$precision" "$bound"
    done
    # A fake NCCL that adds in the order of ranks, as the host does: the same run, the same bits.
    train 2 "again-$precision" --set precision="$precision" --set ranks.shard=none
    cmp "$folder/r2-$precision/checkpoints/step-00000006/model.safetensors" \
        "$folder/again-$precision/checkpoints/step-00000006/model.safetensors"
    # From three GPUs to two CPUs and to one GPU.
    rm -r "$folder/r3-$precision/checkpoints/step-00000006"
    cp -r "$folder/r3-$precision" "$folder/cpu-$precision"
    train 2 "cpu-$precision" --set precision="$precision" --set device=cpu --resume
    near "one-$precision" "cpu-$precision" "$bound"
    train 1 "r3-$precision" --set precision="$precision" --resume
    near "one-$precision" "r3-$precision" "$bound"
done

# More ranks than GPUs.
export CUDA_EMULATOR_DEVICES=1
timeout 60 "$TRAIN" --ranks 2 --config "$folder/tiny.json" --set name=few >"$folder/few.out" 2>&1 &&
    { echo "test_ranks_gpu.sh: two ranks shared a GPU" >&2; exit 1; }
grep -q 'GPU' "$folder/few.out" || { cat "$folder/few.out" >&2; exit 1; }
echo "test_ranks_gpu.sh: ok"
