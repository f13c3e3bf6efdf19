#!/usr/bin/env bash
# Casting infinity to e4m3 gives 448 in PyTorch and NaN in ml_dtypes.
#
# Guess: both are float8_e4m3fn of the same paper, so both give the same code.
# Seen with torch 2.15.0 on a CPU and ml_dtypes 0.6.0: torch saturates, infinity and 1e9 included;
#   ml_dtypes gives NaN for all beyond 464. float8_e5m2 of torch keeps infinity. (Downloads 3 GB.)
# Why a trainer cares: an overflowed gradient that passes through a saturating cast is a large
#   finite one, so the loss scaler does not skip the step. The check belongs before the cast.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.15.0 ml_dtypes==0.6.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import ml_dtypes
import numpy
import torch

values = [448.0, 464.0, 480.0, 1e9, float("inf")]
ours = torch.tensor(values).to(torch.float8_e4m3fn).float().tolist()
wide = torch.tensor(values).to(torch.float8_e5m2).float().tolist()
other = numpy.array(values, numpy.float32).astype(ml_dtypes.float8_e4m3fn).astype(numpy.float32)
print("torch e4m3fn    ", ours)
print("ml_dtypes e4m3fn", other.tolist())
print("torch e5m2      ", wide)
assert ours == [448.0] * 5
assert other[:2].tolist() == [448.0] * 2 and numpy.isnan(other[2:]).all()
assert wide[3:] == [float("inf")] * 2
PYTHON
echo "as found: one format, two rules for overflow"
