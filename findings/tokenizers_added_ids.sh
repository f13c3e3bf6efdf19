#!/usr/bin/env bash
# The id of an added token in tokenizer.json is not the id that it gets.
#
# Guess: {"id": 10, "content": "<x>"} in added_tokens gives <x> the id 10.
# Seen with tokenizers 0.23.3: the token gets the first id behind the vocabulary (2 here). The
#   file's id only decides the order. It holds if no id is left out before it.
# Why a trainer cares: a row of the embedding is trained under the id of the file and used under
#   another one. A reader of tokenizer.json must number as this library does, or refuse the gap.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
import json

from tokenizers import Tokenizer

added = {"id": 10, "content": "<x>", "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
         "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
         "vocab": {"a": 0, "b": 1}, "merges": []}
tokenizer = Tokenizer.from_str(json.dumps(
    {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [added],
     "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
     "model": model}))
ids = tokenizer.encode("a<x>b").ids
print("the file says 10; encoded:", ids)
assert ids == [0, 2, 1] and tokenizer.token_to_id("<x>") == 2
PYTHON
echo "as found: the added token is renumbered"
