#!/usr/bin/env bash
# The GGUF writer of gguf-py leaves out keys whose array is empty.
#
# Guess: add_array(key, []) writes a key with an array of length 0, which the format allows.
# Seen with gguf 0.19.0: the key is missing from the file, and nothing says so.
# Why a trainer cares: a byte tokenizer has no merges, and llama.cpp refuses a file without
#   tokenizer.ggml.merges while it accepts an empty array. A fixture or converter made with this
#   package cannot express it; a writer of its own has to, and its tests cannot use this as
#   oracle.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q gguf==0.19.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import gguf
import numpy

writer = gguf.GGUFWriter("a.gguf", "llama")
writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
writer.add_array("tokenizer.ggml.merges", [])
writer.add_tensor("x", numpy.zeros(4, numpy.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
keys = [key for key in gguf.GGUFReader("a.gguf").fields if key.startswith("tokenizer")]
print("keys in the file:", keys)
assert keys == ["tokenizer.ggml.tokens"]
PYTHON
echo "as found: the empty array is not in the file"
