#!/usr/bin/env bash
# A model saved by transformers 5 rotates with another theta in transformers 4.
#
# Guess: transformers 4.57 reads the config.json of transformers 5 or refuses it.
# Seen with transformers 5.24.0 and 4.57.6: the newer writes theta and scaling into
#   rope_parameters only. The older stores that member unread, takes the default rope_theta 10000
#   and no scaling, and says nothing. The base 500000 of a Llama 3 is lost.
# Why a trainer cares: the same weights give another model to everybody with the older version,
#   and to programs that read rope_theta. An export must carry both spellings.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 5.24.0 4.57.6; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install -q "transformers==$version"
done
export TRANSFORMERS_VERBOSITY=error
"$folder/5.24.0/bin/python" - "$folder/model" <<'PYTHON'
import sys

from transformers import LlamaConfig

LlamaConfig(hidden_size=64, num_attention_heads=4, num_hidden_layers=1, vocab_size=32,
            rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0,
                             "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 8192}).save_pretrained(sys.argv[1])
PYTHON
"$folder/4.57.6/bin/python" - "$folder/model" <<'PYTHON'
import json
import sys

from transformers import LlamaConfig

written = json.load(open(sys.argv[1] + "/config.json"))
read = LlamaConfig.from_pretrained(sys.argv[1])
print("written:", written["rope_parameters"])
print("read by 4.57.6: rope_theta", read.rope_theta, "rope_scaling", read.rope_scaling)
assert written["rope_parameters"]["rope_theta"] == 500000.0 and "rope_theta" not in written
assert read.rope_theta == 10000.0 and read.rope_scaling is None
PYTHON
echo "as found: theta 500000 becomes 10000 without a word"
