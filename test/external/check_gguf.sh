#!/usr/bin/env bash
# Exports models to GGUF in each type, and compares every tensor, size and field of the tokenizer
# with the same models in transformers and gguf; with llama-cpp-python in the environment also
# tokens and logits with llama.cpp's. Prints a line a file; the exit status is 1 if one differs. Not
# a part of `make test`, since it needs Python packages, which it installs the first time.
#   test/external/check_gguf.sh [--venv FOLDER] [MODEL ...]
#     --venv   the environment; default build/gguf, created if missing
#     MODEL    what ./train --from takes; without one, small random models of each class
# TRAIN=PROGRAM names ./train. For llama.cpp, install llama-cpp-python there, which compiles it.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=build/gguf out=build/check_gguf train=${TRAIN:-./train}
while [ $# -gt 0 ]; do
    case $1 in
    --venv) venv=${2:?--venv needs a folder} && shift 2 ;;
    --help | -h) sed -n '2,10s/^# \?//p' "$0" && exit 0 ;;
    -*) sed -n '2,10s/^# \?//p' "$0" >&2 && exit 2 ;;
    *) break ;;
    esac
done

if [ ! -x "$venv/bin/python" ] && ! "${PYTHON:-python3}" -m venv "$venv"; then
    echo "check_gguf: that needs Python with venv (apt-get install python3-venv)" >&2
    exit 1
fi
if ! "$venv/bin/python" -c 'import gguf, tokenizers, torch, transformers' 2>/dev/null; then
    "$venv/bin/python" -m pip install --quiet -r test/golden/requirements.txt
fi
[ -x "$train" ] || make -j"$(nproc)" train
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 TRANSFORMERS_VERBOSITY=error

models=("$@")
rm -rf "$out" && mkdir -p "$out"
if [ $# -eq 0 ]; then
    made=$("$venv/bin/python" test/external/check_gguf_models.py "$out/models")
    mapfile -t models <<<"$made"
fi
failed=0
for model in "${models[@]}"; do
    files=() name=$(basename "$model")
    "$train" --export "$out/$name" --from "$model" >/dev/null
    for type in f32 f16 bf16 q8_0 q4_0; do
        files+=("$out/$name-$type.gguf")
        "$train" --export "${files[-1]}" --type $type --from "$model" >/dev/null
    done
    "$venv/bin/python" test/external/check_gguf.py "$out/$name" "${files[@]}" || failed=1
done
exit "$failed"
