#!/usr/bin/env bash
# Whole trainings on the emulated GPU under ThreadSanitizer, which sees each stream as a thread.
# Batches, results, samples, validation and checkpoints each have a stream or an event, and the
# update changes offloaded moments in host memory. Streamed layers are copied while others run, in
# both directions. Uses $TRAIN, of BUILD=emulated-thread.
set -euo pipefail
cd "$(dirname "$0")/../.."
train=${TRAIN:-build/emulated-thread/train}
folder=$(mktemp -d "${TMPDIR:-/tmp}/races.XXXXXX")
trap 'rm -rf "$folder"' EXIT
export XDG_CACHE_HOME=$folder/cache
failures=0 ran=0

cat >"$folder/small.json" <<'END'
{"model": {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 32}, "data": {"seq_len": 32},
 "train": {"steps": 4, "micro_batch_size": 2, "grad_accum_steps": 3},
 "optimizer": {"warmup_steps": 1}, "eval": {"every": 2, "batches": 2},
 "sample": {"every": 2, "tokens": 5}}
END

# Trains with these settings; after a race ./train ends with a status other than 0.
trains() {
    local settings=() setting
    for setting in "$@"; do settings+=(--set "$setting"); done
    ran=$((ran + 1))
    OMP_NUM_THREADS=1 "$train" --config "$folder/small.json" --device cuda \
        --set run_dir="$folder" --set name="run-$ran" "${settings[@]}" >"$folder/said" 2>&1 ||
        echo "status $?" >>"$folder/said"
    if grep -qE '^status|WARNING: ThreadSanitizer' "$folder/said"; then
        echo "FAIL: $*"
        grep -A 12 -m 2 'WARNING: ThreadSanitizer' "$folder/said" || tail -n 5 "$folder/said"
        failures=$((failures + 1))
    fi
}
trains precision=fp32
trains precision=bf16
trains precision=fp16
trains precision=bf16 offload.optimizer=true checkpoint.every=1
trains precision=fp16 checkpoint.every=1 checkpoint.keep=1
trains precision=bf16 weights.copy=cast train.recompute=layer gradients.dtype=lower
trains precision=fp8 fp8.recipe=delayed
trains precision=fp8 fp8.recipe=row train.recompute=gelu
trains precision=bf16 model.norm=rmsnorm model.mlp=swiglu model.positions=rope model.n_kv_head=1
trains precision=bf16 model.init_from="$folder/run-2/checkpoints/step-00000004" \
    adapter.type=lora adapter.base=nf4 offload.weights=true checkpoint.every=1
trains precision=bf16 model.n_layer=4 train.grad_accum_steps=2 offload.weights=true \
    offload.gradients=true offload.activations=true offload.optimizer=true optimizer.moments=int8 \
    checkpoint.every=1
[ $failures = 0 ] || exit 1
echo "test_races.sh: $ran trainings: no races"
