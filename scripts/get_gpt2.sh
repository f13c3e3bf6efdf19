#!/usr/bin/env bash
# Fetches GPT-2, weights and tokenizer; see scripts/get_gpt2.sh --help.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=scripts/fetch.sh
. "$here/fetch.sh"

usage() {
    cat <<'TEXT'
scripts/get_gpt2.sh [NAME] [--out FOLDER] [--tokenizer]

Fetches a GPT-2 of OpenAI into FOLDER/NAME (datasets/NAME), as Hugging Face
keeps it: weights, config and tokenizer. NAME is gpt2 (the default, 124 M
parameters, 0.55 GB), gpt2-medium (355 M, 1.5 GB), gpt2-large (774 M, 3.2 GB)
or gpt2-xl (1.5 B, 6.4 GB). All have the same tokenizer; --tokenizer fetches
only that.

TEXT
    fetch_usage
}

HUB=https://huggingface.co/openai-community
VOCAB_SHA256=196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783
MERGES_SHA256=1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5

out=datasets name=gpt2 weights=1
while [ $# -gt 0 ]; do
    case $1 in
    --out) out=${2:-} && shift ;;
    --tokenizer) weights=0 ;;
    --help | -h) usage && exit 0 ;;
    gpt2 | gpt2-medium | gpt2-large | gpt2-xl) name=$1 ;;
    *) fetch_complain "$1: unknown; --help says what there is" && exit 2 ;;
    esac
    shift || { fetch_complain "the last option needs a value" && exit 2; }
done
if [ -z "$out" ]; then fetch_complain "--out needs a folder" && exit 2; fi

folder=$out/$name
get() { # FILE [SHA256]
    fetch "$HUB/$name/resolve/main/$1" "$folder/$1" "${2:-}"
}
# Other programs use these two files; ours do not need them.
get_optional() { # FILE
    local status=0
    get "$1" || status=$?
    if [ $status -ne 0 ] && [ $status -ne "$FETCH_MISSING" ]; then exit 1; fi
    if [ $status -ne 0 ]; then echo "$folder/$1: left out, for it is not needed here"; fi
}

fetch_begin
get vocab.json $VOCAB_SHA256 || exit 1
get merges.txt $MERGES_SHA256 || exit 1
get tokenizer.json || exit 1
get_optional tokenizer_config.json
if [ $weights -eq 0 ]; then
    echo "next: ./prepare --tokenizer $folder --out $out/mine my_text.txt"
    exit 0
fi
get config.json || exit 1
get_optional generation_config.json
get model.safetensors || exit 1
cat <<TEXT
next: ./train --sample "Once upon a time" --from $folder
      ./prepare --tokenizer $folder --out $out/mine my_text.txt
      ./train --config finetune-gpt2.json --set model.init_from=$folder \\
          --set 'data.train=$out/mine_train_*.bin' \\
          --set 'data.val=$out/mine_val_*.bin'
TEXT
