#!/usr/bin/env bash
# Fetches text or tokens to train on; see scripts/get_data.sh --help.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=scripts/fetch.sh
. "$here/fetch.sh"

usage() {
    cat <<'TEXT'
scripts/get_data.sh NAME ... [--out FOLDER] [--shards N]

Fetches training data into FOLDER/NAME (datasets/NAME):

  tinyshakespeare   text, 1.1 MB, for a first try
  tinystories       text, 2.3 GB: TinyStories V2, short stories by GPT-4, with
                    their own text for validation
  fineweb-edu       tokens of GPT-2 in shards of 200 MB, ready for ./train: the
                    first --shards N (1, at most 1000) and one for validation

TEXT
    fetch_usage
}

HUB=https://huggingface.co/datasets
STORIES=$HUB/roneneldan/TinyStories/resolve/main
FINEWEB=$HUB/karpathy/fineweb-edu-100B-gpt2-token-shards/resolve/main
SHAKESPEARE=https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare
SHAKESPEARE_SHA256=86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed

out=datasets shards=1 names=()
while [ $# -gt 0 ]; do
    case $1 in
    --out) out=${2:-} && shift ;;
    --shards) shards=${2:-} && shift ;;
    --help | -h) usage && exit 0 ;;
    tinyshakespeare | tinystories | fineweb-edu) names+=("$1") ;;
    *) fetch_complain "$1: unknown; --help says what there is" && exit 2 ;;
    esac
    shift || { fetch_complain "the last option needs a value" && exit 2; }
done
if [ ${#names[@]} -eq 0 ]; then usage >&2 && exit 2; fi
if [ -z "$out" ]; then fetch_complain "--out needs a folder" && exit 2; fi
if ! [[ $shards =~ ^[1-9][0-9]{0,3}$ ]] || [ "$shards" -gt 1000 ]; then
    fetch_complain "--shards: \"$shards\" is not a whole number from 1 to 1000"
    exit 2
fi

get_tinyshakespeare() { # FOLDER
    fetch $SHAKESPEARE/input.txt "$1/input.txt" $SHAKESPEARE_SHA256 || return
    cat <<TEXT
next: ./prepare --tokenizer bytes --out $(fetch_quote "$1/bytes") $(fetch_quote "$1/input.txt")
      ./train --config bf16.json --set name=shakespeare \\
          --set $(fetch_quote "data.train=$1/bytes_train_*.bin") \\
          --set $(fetch_quote "data.val=$1/bytes_val_*.bin")
TEXT
}

get_tinystories() { # FOLDER
    local part
    for part in valid train; do
        fetch $STORIES/TinyStoriesV2-GPT4-$part.txt "$1/TinyStoriesV2-GPT4-$part.txt" || return
    done
    cat <<TEXT
next: scripts/get_model.sh openai-community/gpt2 $gpt2 --tokenizer
      ./prepare --tokenizer $gpt2 --val-fraction 0 --out $(fetch_quote "$1/train") \\
          $(fetch_quote "$1/TinyStoriesV2-GPT4-train.txt")
      ./prepare --tokenizer $gpt2 --val-fraction 0 --out $(fetch_quote "$1/valid") \\
          $(fetch_quote "$1/TinyStoriesV2-GPT4-valid.txt")
      ./train --config gpt2-124m.json --set name=stories \\
          --set $(fetch_quote "data.train=$1/train_train_*.bin") \\
          --set $(fetch_quote "data.val=$1/valid_train_*.bin")
TEXT
}

get_fineweb_edu() { # FOLDER
    local shard=val_000000 number
    for ((number = 0; number <= shards; number++)); do
        if [ $number -gt 0 ]; then shard=$(printf 'train_%06d' $number); fi
        fetch "$FINEWEB/edu_fineweb_$shard.bin" "$1/edu_fineweb_$shard.bin" || return
    done
    cat <<TEXT
next: scripts/get_model.sh openai-community/gpt2 $gpt2 --tokenizer
      ./train --config gpt2-124m.json --set data.tokenizer_dir=$gpt2 \\
          --set $(fetch_quote "data.train=$1/edu_fineweb_train_*.bin") \\
          --set $(fetch_quote "data.val=$1/edu_fineweb_val_*.bin")
TEXT
}

fetch_begin
gpt2=$(fetch_quote "$out/gpt2")
for name in "${names[@]}"; do
    "get_${name//-/_}" "$out/$name" || exit 1
done
