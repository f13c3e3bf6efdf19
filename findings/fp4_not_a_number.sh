#!/usr/bin/env bash
# Infinity and NaN become ordinary numbers in FP4, and a scale of zero becomes NaN.
#
# Guess: a cast to a narrow float keeps what is not finite visible, as fp16, bf16 and fp8 do.
# Seen with ml_dtypes 0.6.0: float4_e2m1fn has no such code, so infinity becomes 6 and NaN becomes
#   -0. float8_e8m0fnu, the scale of MXFP4 blocks, has no zero, so 0 becomes NaN: a block of zeros
#   whose scale is cast without a guard comes back as NaN, and a block with a NaN without one.
# Why a trainer cares: overflow is found by looking for inf and NaN in gradients. After such a
#   cast there is nothing to find; the check has to look at the values before, and the scale of an
#   all-zero block must be the smallest one instead of zero.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q ml_dtypes==0.6.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import ml_dtypes
import numpy

values = numpy.array([numpy.inf, -numpy.inf, numpy.nan], numpy.float32)
codes = values.astype(ml_dtypes.float4_e2m1fn).astype(numpy.float32)
scale = numpy.zeros(1, numpy.float32).astype(ml_dtypes.float8_e8m0fnu).astype(numpy.float32)
print("inf, -inf, nan as e2m1:", codes, "| 0 as e8m0:", scale)
assert codes[0] == 6 and codes[1] == -6 and codes[2] == 0
assert numpy.isnan(scale[0])
PYTHON
echo "as found: FP4 hides what is not finite"
