#!/usr/bin/env bash
# add_bos_token has no effect beside a tokenizer.json without a post-processor.
#
# Guess: "add_bos_token": true in tokenizer_config.json puts the BOS token before each text.
# Seen with transformers 5.24.0: with a byte-level tokenizer.json that has no post-processor,
#   true, false and an absent key give the same ids for six tokenizer classes: none has a BOS.
# Why a trainer cares: the key looks like the definition of what a model was trained on. A trainer
#   that obeys it feeds a BOS that generation with transformers never sees, and the other way
#   around.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q transformers==5.24.0 tokenizers==0.23.3
cd "$folder"
TRANSFORMERS_VERBOSITY=error "$folder/venv/bin/python" - <<'PYTHON'
import json
import os

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {token: i for i, token in enumerate(["<s>", "</s>"] + alphabet)}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(["<s>", "</s>"])
os.mkdir("model")
tokenizer.save("model/tokenizer.json")
plain = [vocabulary["a"], vocabulary["b"]]
for name in ("PreTrainedTokenizerFast", "LlamaTokenizerFast", "LlamaTokenizer", "GPT2Tokenizer",
             "Qwen2Tokenizer", "GemmaTokenizer"):
    for bos in ({"add_bos_token": True}, {"add_bos_token": False}, {}):
        with open("model/tokenizer_config.json", "w") as file:
            json.dump({"tokenizer_class": name, "bos_token": "<s>",
                       "eos_token": "</s>"} | bos, file)
        ids = AutoTokenizer.from_pretrained("model")("ab").input_ids
        print(name, bos, ids)
        assert ids == plain
PYTHON
echo "as found: no class adds the BOS token"
