#!/usr/bin/env bash
# Compares models with Hugging Face's transformers, in both directions: logits, losses, ten steps of
# training and exports of small random GPT-2s, Llamas, Mistrals and Qwens; tokens and greedy text.
# Chats are rendered and answered on both. Prints one line a check; the exit status is 1 if one
# failed. Not a part of `make test`, since it needs PyTorch, several gigabytes, which it installs
# into a virtual environment the first time.
#
#   test/external/check_huggingface.sh [--venv FOLDER]
#     --venv   the environment; default build/huggingface, created if missing. One that has torch,
#              transformers, tokenizers and safetensors is used as it is: for instance one with a
#              torch for the CPU only, which is smaller
# GPT2_DIR=FOLDER adds the tokenizer of GPT-2, and GPT2_WEIGHTS=FOLDER a whole GPT-2, both from
# scripts/get_model.sh openai-community/gpt2. PYTHON=python3 makes the environment.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=build/huggingface
while [ $# -gt 0 ]; do
    case $1 in
    --venv) venv=${2:?--venv needs a folder} && shift 2 ;;
    --help | -h) sed -n '2,13s/^# \?//p' "$0" && exit 0 ;;
    *) sed -n '2,13s/^# \?//p' "$0" >&2 && exit 2 ;;
    esac
done

if [ ! -x "$venv/bin/python" ]; then
    if ! "${PYTHON:-python3}" -m venv "$venv"; then
        echo "check_huggingface: that needs Python with venv (apt-get install python3-venv)" >&2
        exit 1
    fi
fi
if ! "$venv/bin/python" -c 'import safetensors, tokenizers, torch, transformers' 2>/dev/null; then
    "$venv/bin/python" -m pip install --quiet -r test/golden/requirements.txt
fi

make -j"$(nproc)" all build/fast/logits
# Forbids downloads, and lets waiting threads sleep beside Python's.
export HF_HUB_OFFLINE=1 OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
failed=0
"$venv/bin/python" test/external/check_huggingface.py build/check_huggingface || failed=1
"$venv/bin/python" test/external/check_chat.py build/check_huggingface/chat || failed=1
exit "$failed"
