#!/usr/bin/env bash
# Compares tokens with those of Hugging Face's tokenizers and of tiktoken, on hostile texts of more
# than 2 MB and on prose, for a small tokenizer of each kind. Prints one line a check, with the
# speed on one core; the exit status is 1 if one failed. Not a part of `make test`, since it needs Python
# packages, which it installs into a virtual environment the first time.
#   test/external/check_tokenizers.sh [--venv FOLDER] [TOKENIZER.json | FOLDER ...]
#     --venv   the environment; default build/tokenizers, created if missing
#     TOKENIZER.json   these are compared instead: real vocabularies of any size
#     FOLDER           one with tiktoken.json and its ranks, compared with tiktoken
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=build/tokenizers
if [ "${1:-}" = --venv ]; then venv=${2:?--venv needs a folder} && shift 2; fi
case ${1:-} in -*) sed -n '2,9s/^# \?//p' "$0" && exit 2 ;; esac

if [ ! -x "$venv/bin/python" ]; then
    if ! "${PYTHON:-python3}" -m venv "$venv"; then
        echo "check_tokenizers: that needs Python with venv (apt-get install python3-venv)" >&2
        exit 1
    fi
fi
if ! "$venv/bin/python" -c 'import numpy, tiktoken, tokenizers' 2>/dev/null; then
    "$venv/bin/python" -m pip install --quiet numpy -r test/golden/tokenizer/requirements.txt
fi
make -j"$(nproc)" build/fast/encode_file
"$venv/bin/python" test/external/check_tokenizers.py build/check_tokenizers "$@"
