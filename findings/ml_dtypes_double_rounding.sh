#!/usr/bin/env bash
# An array of doubles rounds to fp8 and bf16 twice, a scalar once.
#
# Guess: astype of a NumPy array gives what the constructor of the type gives for each element.
# Seen with ml_dtypes 0.6.0: 1 + 2^-4 + 2^-40 lies above the middle of 1 and 1.125. As a scalar it
#   becomes 1.125, the nearest e4m3. In an array it passes through float32, where it is the middle
#   itself, and becomes 1.
# Why a trainer cares: oracles of rounding are computed in double precision and cast at the end.
#   Such an oracle is wrong at exactly the ties that a test of rounding looks at. Cast from
#   float32.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ml_dtypes==0.6.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import ml_dtypes
import numpy

value = numpy.float64(1 + 2**-4 + 2**-40)
scalar = float(ml_dtypes.float8_e4m3fn(value))
array = float(numpy.array([value]).astype(ml_dtypes.float8_e4m3fn)[0])
print("scalar", scalar, "array", array)
assert scalar == 1.125 and array == 1.0
PYTHON
echo "as found: the array is rounded twice"
