#!/usr/bin/env bash
# Fetches a model of the Hugging Face Hub; see scripts/get_model.sh --help.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=scripts/fetch.sh
. "$here/fetch.sh"

usage() {
    cat <<'TEXT'
scripts/get_model.sh ORG/NAME [DIR] [--tokenizer] [--revision REV]

Fetches a model of the Hugging Face Hub into DIR (datasets/NAME): config,
tokenizer, chat template and weights in safetensors, all of one commit. Whole
models and adapters of PEFT are fetched. --tokenizer leaves out the weights.
REV is a branch, a tag or a commit (main).

  scripts/get_model.sh openai-community/gpt2
  HF_TOKEN=hf_... scripts/get_model.sh meta-llama/Llama-3.2-1B datasets/llama

HF_TOKEN in the environment is sent to the Hub, for models with terms that must
be accepted there first; never to a mirror, and only by https or to this
machine. HF_ENDPOINT=https://host is used instead of the Hub.

TEXT
    fetch_usage
}

model="" folder="" revision=main weights=1
while [ $# -gt 0 ]; do
    case $1 in
    --tokenizer) weights=0 ;;
    --revision) revision=${2:-} && shift ;;
    --help | -h) usage && exit 0 ;;
    -*) fetch_complain "$1: unknown; --help says what there is" && exit 2 ;;
    *) if [ -z "$model" ]; then model=$1
        elif [ -z "$folder" ]; then folder=$1
        else fetch_complain "$1: one model at a time; --help says more" && exit 2; fi ;;
    esac
    shift || { fetch_complain "the last option needs a value" && exit 2; }
done
names_model() { [[ $1 =~ ^[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*$ ]]; } # NAME
if ! names_model "$model"; then
    fetch_complain "${model:-no model}: models are named ORG/NAME, as openai-community/gpt2" && exit 2
fi
if ! [[ $revision =~ ^[A-Za-z0-9._/-]+$ ]]; then
    fetch_complain "--revision needs a branch, a tag or a commit" && exit 2
fi
folder=${folder:-datasets/${model#*/}}

fetch_begin
hub=${HF_ENDPOINT:-https://huggingface.co} hub=${hub%/}
fetch_refused="there is no $model, or its terms must be accepted at $hub/$model first, with HF_TOKEN
set to a token from $hub/settings/tokens"
if [ -n "${HF_TOKEN:-}" ] && { [ -n "${MANTISSA_MIRROR:-}" ] ||
    ! [[ $hub =~ ^(https://|http://(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?(/|$)) ]]; }; then
    fetch_complain "HF_TOKEN is not sent to ${MANTISSA_MIRROR:-$hub}: it is for the Hub alone, by https"
elif [ -n "${HF_TOKEN:-}" ]; then
    # In a file, because anybody may read the arguments of a process.
    (umask 077 && printf 'Authorization: Bearer %s\n' "$HF_TOKEN" >"$fetch_scratch/token")
    fetch_headers=(--header "@$fetch_scratch/token")
fi

fetch_fail() { fetch_complain "$model: $1" && exit 1; }

# The names of all files, and the commit: {"sha": "...", "siblings": [{"rfilename": "..."}, ...]}.
fetch_quietly "$hub/api/models/$model/revision/${revision//\//%2F}" "$fetch_scratch/list" || exit 1
commit=$revision
if [[ $(<"$fetch_scratch/list") =~ \"sha\"\ *:\ *\"([0-9a-f]{40})\" ]]; then commit=${BASH_REMATCH[1]}; fi
mapfile -t files < <(grep -oE '"rfilename" *: *"[^"]+"' "$fetch_scratch/list" | sed 's/.*: *"//; s/"$//')
if [ ${#files[@]} -eq 0 ]; then
    fetch_fail "$hub lists no files of it; does a login page or a proxy answer in its place?"
fi
has() { # FILE
    local file
    for file in "${files[@]}"; do
        if [ "$file" = "$1" ]; then return; fi
    done
    return 1
}

get() { # FILE ...: those that the model has
    local file
    for file; do
        if has "$file"; then
            fetch "$hub/$model/resolve/$commit/$file" "$folder/$file" || exit 1
        fi
    done
}

if [ $weights -eq 1 ] && ! has model.safetensors && ! has model.safetensors.index.json &&
    ! has adapter_model.safetensors; then
    fetch_fail "has no weights in safetensors (model.safetensors), the only format that is read"
fi
has_tokenizer() { has tokenizer.json || has vocab.json; }
if [ $weights -eq 0 ] && ! has_tokenizer; then
    fetch_fail "has no tokenizer in a format that is read (tokenizer.json or vocab.json)"
fi
get config.json generation_config.json adapter_config.json tokenizer.json tokenizer_config.json \
    special_tokens_map.json added_tokens.json vocab.json merges.txt chat_template.jinja
if [ $weights -eq 1 ]; then
    if has model.safetensors; then
        get model.safetensors
    elif has model.safetensors.index.json; then
        get model.safetensors.index.json
        mapfile -t shards < <(grep -oE '"[^"]+\.safetensors"' \
            "$folder/model.safetensors.index.json" | tr -d '"' | sort -u)
        [ ${#shards[@]} -gt 0 ] || fetch_fail "its model.safetensors.index.json names no weights"
        for shard in "${shards[@]}"; do
            [[ $shard =~ ^[A-Za-z0-9._-]+$ ]] ||
                fetch_fail "its index names ${shard//[^ -~]/?}, which is no plain file name"
            has "$shard" || fetch_fail "its index names $shard, which is not there"
        done
        get "${shards[@]}"
    fi
    get adapter_model.safetensors
fi
shown=$(fetch_quote "$folder")
if has adapter_config.json; then
    base=$(sed -n 's/.*"base_model_name_or_path" *: *"\([^"]*\)".*/\1/p' "$folder/adapter_config.json")
    if ! names_model "$base"; then base=ORG/BASE; fi
    echo "next: scripts/get_model.sh $base     # the model that it adapts"
    echo "next: ./train --config finetune-lora.json --set adapter.init_from=$shown \\"
    echo "          --set model.init_from=datasets/${base#*/}"
    exit 0
fi
if ! has_tokenizer; then
    echo "note: its tokenizer is in a format that is not read (tokenizer.json and vocab.json are)"
    exit 0
fi
if [ $weights -eq 1 ]; then echo "next: ./train --sample \"Once upon a time\" --from $shown"; fi
echo "next: ./prepare --tokenizer $shown --out datasets/mine my_text.txt      # or rows.jsonl"
