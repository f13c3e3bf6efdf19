#!/usr/bin/env bash
# Two saves of the same tensors and metadata are different files.
#
# Guess: safetensors files are reproducible, since tensors are sorted and JSON is compact.
# Seen with safetensors 0.8.0: the members of __metadata__ come in another order in each process,
#   so the same call gives other bytes, and another SHA-256, each time. One member alone is safe.
# Why a trainer cares: "resumes bit for bit" cannot be checked by the hash of a file that this
#   library wrote with several members of metadata, nor can a cache be keyed by it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q safetensors==0.8.0 numpy==2.4.6
hashes() { # METADATA: of ten saves in processes of their own, the number of different files
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        "$folder/venv/bin/python" -c "
import hashlib, numpy, safetensors.numpy
data = safetensors.numpy.save({'a': numpy.zeros(2, numpy.float32)}, metadata=$1)
print(hashlib.sha256(data).hexdigest())"
    done | sort -u | wc -l
}
one=$(hashes "{'format': 'pt'}")
four=$(hashes "{'format': 'pt', 'step': '1', 'seed': '2', 'epoch': '3'}")
echo "different files of ten saves: $one with one member, $four with four"
[ "$one" -eq 1 ]
[ "$four" -gt 1 ]
echo "as found: the order of metadata changes from process to process"
