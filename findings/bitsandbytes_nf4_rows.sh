#!/usr/bin/env bash
# On a CPU with AVX-512 bitsandbytes gives other values back from nf4 when rows end inside a block.
#
# Guess: blocks of nf4 go over the flat tensor, so codes and scales say everything, and each
#   implementation returns the same values, within the error of 16 levels.
# Seen with bitsandbytes 0.50.2 on torch 2.15.0: a 32 x 96 matrix comes back with errors of 2.6
#   where the codes and scales that the same package wrote mean 0.44, as do others whose columns are
#   a multiple of 16 and not of 64. 64 x 64 and 64 x 72 come back as their codes say (0.39, 0.45).
#   (Downloads 3 GB.)
# Why a trainer cares: adapters of QLoRA are trained on the values that one program dequantizes and
#   run on those of another. A reader that is checked against this path, or copies its values,
#   trains on a base that nobody has; the codes in the file are right.
set -euo pipefail
if ! grep -qw avx512f /proc/cpuinfo; then
    echo "bitsandbytes_nf4_rows: needs a processor with AVX-512" >&2
    exit 2
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q bitsandbytes==0.50.2 torch==2.15.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>"$folder/notes" <<'PYTHON'
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit

torch.manual_seed(0)
errors = {}
for rows, columns in ((64, 64), (64, 72), (32, 96)):
    weight = torch.randn(rows, columns)
    packed, state = quantize_4bit(weight, blocksize=64, quant_type="nf4")
    codes = torch.stack([packed.flatten() >> 4, packed.flatten() & 15], 1).flatten().long()
    scales = state.absmax.repeat_interleave(64)[:weight.numel()]
    meant = (state.code[codes[:weight.numel()]] * scales).view(rows, columns)
    found = dequantize_4bit(packed, state)
    errors[rows, columns] = [round((x - weight).abs().max().item(), 2) for x in (found, meant)]
    print(f"{rows} x {columns}: largest error {errors[rows, columns][0]}, "
          f"of the codes and scales {errors[rows, columns][1]}")
assert errors[64, 64][0] == errors[64, 64][1] and errors[64, 72][0] == errors[64, 72][1]
assert errors[32, 96][0] > 1 > 0.6 > errors[32, 96][1]
PYTHON
echo "as found: rows that end inside a block come back wrong"
