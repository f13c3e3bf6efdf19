#!/usr/bin/env bash
# A byte-level vocabulary without some bytes loses these bytes in silence.
#
# Guess: byte-level BPE covers every text, or encoding fails for a byte that has no token.
# Seen with tokenizers 0.23.3: a byte without a token, in a model without unk_token, is dropped.
#   No token stands for it, no error is raised, and decoding gives a shorter text. Such
#   vocabularies are in use: that of SmolLM2 lacks 21 of the 256 bytes.
# Why a trainer cares: a corpus may lose characters (here the line feeds), and the loss does not
#   show it. A reader that insists on 256 bytes cannot open these models at all.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

LINE_FEED = "\u010a"  # byte 0x0a in the alphabet of GPT-2
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
vocabulary = {letter: i for i, letter in enumerate(a for a in alphabet if a != LINE_FEED)}
tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
tokenizer.decoder = decoders.ByteLevel()

encoding = tokenizer.encode("one\ntwo")
text = tokenizer.decode(encoding.ids)
print("tokens", encoding.tokens, "decoded", repr(text))
assert encoding.tokens == list("onetwo") and text == "onetwo"
PYTHON
echo "as found: the line feed has no token, and nothing says so"
