#!/usr/bin/env bash
# Trains small models of each family for 20 steps, exports them, and opens the exports with programs
# of others. Prints a line a program and model: the largest difference of logits to transformers 5,
# or if greedy text is equal. Outside CI: it installs 7 GB of packages into FOLDER the first time.
#   test/external/readers.sh FOLDER [MODEL ...]
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(realpath -m "${1:?name a folder}") here=test/external
shift
models=("$@")
[ $# -gt 0 ] || models=(llama mistral qwen2 qwen3 gemma2 gemma3 gpt2 bytes)
if [ ! -x "$folder/new/bin/python" ]; then
    python3 -m venv "$folder/new" && python3 -m venv "$folder/old"
    "$folder/new/bin/pip" install --quiet transformers==5.24.0 torch==2.15.0 ctranslate2==4.8.5 \
        mlx-lm==0.32.2 'mlx[cpu]' onnxruntime-genai==0.18.0 openvino-genai==2026.4.1.0 \
        mistralrs==0.9.5 xllamacpp==2026.10.11549 lm-eval==0.4.13 \
        onnx-ir accelerate
    "$folder/old/bin/pip" install --quiet transformers==4.57.6 torch==2.15.0 accelerate
fi
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error OMP_NUM_THREADS=1

work=$folder/work
rm -rf "$work" && mkdir -p "$work"
"$folder/new/bin/python" $here/readers_models.py "$work" README.md
./prepare --tokenizer "$work/tokenizer" --out "$work/text" --val-fraction 0 README.md
for model in "${models[@]}"; do
    from=(--config configs/finetune-llama.json --set "model.init_from=$work/$model")
    text="$work/text_train_*.bin"
    [ "$model" = gpt2 ] && from=(--config configs/quickstart.json --set data.tokenizer=files
                                 --set "data.tokenizer_dir=$work/tokenizer" --set model.vocab_size=512)
    [ "$model" = bytes ] && from=(--config configs/quickstart.json) text=tales
    ./train "${from[@]}" --set "name=$model" --set "run_dir=$work/runs" --set precision=fp32 \
        --set device=cpu --set "data.train=$text" --set data.val= --set data.seq_len=128 \
        --set train.epochs=0 --set train.steps=20 --set train.micro_batch_size=4 \
        --set train.batch_tokens=0 --set train.grad_accum_steps=1 --set optimizer.warmup_steps=2 \
        --set optimizer.lr=3e-3 --set eval.every=0 --set sample.every=0 --set checkpoint.every=20
    ./train --export "$work/$model.out" --from "$work/runs/$model"
    for type in f32 f16 bf16 q8_0 q4_0; do
        ./train --export "$work/$model-$type.gguf" --type $type --from "$work/runs/$model"
    done
done

try() { # VENV READER PATH MODEL
    local output
    output=$(timeout 300 "$folder/$1/bin/python" $here/readers.py "$2" "$3" "$work/$4.json" 2>&1 ||
        true)
    echo "$(basename "$3"), $1: $(grep -a "^$2: " <<<"$output" ||
        echo "$2: does not open: $(tail -n 1 <<<"$output" | cut -c 1-160)")"
}
for model in "${models[@]}"; do
    "$folder/new/bin/python" $here/readers.py expect "$work/$model.out" "$work/$model.json"
    try old transformers "$work/$model.out" "$model"
    for reader in ctranslate2 mlx onnxruntime lm_eval mistral_rs; do
        try new $reader "$work/$model.out" "$model"
    done
    for type in f32 f16 bf16 q8_0 q4_0; do
        for reader in llama_cpp openvino mistral_rs; do
            try new $reader "$work/$model-$type.gguf" "$model"
        done
    done
done
