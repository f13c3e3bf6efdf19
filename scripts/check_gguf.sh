#!/usr/bin/env bash
# Converts exports to GGUF, llama.cpp's format, and compares every tensor, size and field of the
# tokenizer with the export. Prints one line an export; the exit status is 1 if one differs. Not a
# part of `make test`, since it needs Python packages, which it installs into a virtual environment
# the first time.
#   scripts/check_gguf.sh [--venv FOLDER] [--out FOLDER] [EXPORT ...]
#     --venv   the environment; default build/gguf, created if missing
#     --out    where the files EXPORT.gguf are written; default build/check_gguf
#     EXPORT   a folder that ./train --export wrote; without one, small models of each class
#              are trained for a few steps and exported
# LLAMA_CPP=FOLDER names a checkout of llama.cpp, whose convert_hf_to_gguf.py writes the files then;
# the environment must have what it needs. GPT2_DIR=FOLDER adds models with GPT-2's tokenizer.
# Logits and tokens are compared if the environment has llama-cpp-python.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/gguf out=build/check_gguf
while [ $# -gt 0 ]; do
    case $1 in
    --venv) venv=${2:?--venv needs a folder} && shift 2 ;;
    --out) out=${2:?--out needs a folder} && shift 2 ;;
    --help | -h) sed -n '2,14s/^# \?//p' "$0" && exit 0 ;;
    -*) sed -n '2,14s/^# \?//p' "$0" >&2 && exit 2 ;;
    *) break ;;
    esac
done

if [ ! -x "$venv/bin/python" ] && ! "${PYTHON:-python3}" -m venv "$venv"; then
    echo "check_gguf: that needs Python with venv (apt-get install python3-venv)" >&2
    exit 1
fi
if ! "$venv/bin/python" -c 'import gguf, numpy' 2>/dev/null; then
    "$venv/bin/python" -m pip install --quiet gguf
fi
make -j"$(nproc)" all build/fast/logits

mkdir -p "$out"
exports=("$@")
make_exports() { # NAME FLAGS ...: trains a model of each class for 20 steps, exports it in each dtype
    local class settings dtype llama='norm=rmsnorm positions=rope mlp=swiglu n_kv_head=2 bias=none'
    while read -r class settings; do
        read -ra settings <<<"n_layer=2 n_embd=128 n_positions=256 $settings"
        rm -rf "$out/runs/$1-$class" "$out/exports/$1-$class"-*
        ./train --config fp32.json --set=name="$1-$class" --set=run_dir="$out/runs" \
            --set=train.steps=20 --set=optimizer.warmup_steps=0 "${settings[@]/#/--set=model.}" \
            --set={data.seq_len=128,eval.every=0,checkpoint.every=0,sample.every=0} "${@:2}" >/dev/null
        for dtype in fp32 bf16 fp16; do
            exports+=("$out/exports/$1-$class-$dtype")
            ./train --export "${exports[-1]}" --dtype $dtype --from "$out/runs/$1-$class" >/dev/null
        done
    done <<END
gpt2
llama $llama tied_head=false
llama3 $llama rope_scaling=llama3 bias=all
mistral $llama type=mistral window=64
qwen2 $llama bias=qkv
qwen3 $llama qk_norm=true head_dim=48
END
}
if [ $# -eq 0 ]; then
    make_exports bytes
    if [ -n "${GPT2_DIR:-}" ]; then
        ./prepare --tokenizer "$GPT2_DIR" --force --out "$out/text" README.md model/ >/dev/null
        make_exports bpe --set=data.tokenizer=gpt2 --set=data.{train,val}="$out/text_train_*.bin"
    fi
fi
HF_HUB_OFFLINE=1 "$venv/bin/python" scripts/check_gguf.py "$out" "${exports[@]}"
