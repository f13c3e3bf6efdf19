#!/usr/bin/env bash
# Gradients of a bf16 LayerNorm on a CPU stop growing after 256 rows.
#
# Guess: gradients of weight and bias are sums over rows in fp32, rounded once, as those of Linear
#   are.
# Seen with torch 2.15.0 on a CPU, one thread: each sum runs in bf16, so 1,000 rows of ones give
#   256: 256 + 1 rounds back to 256. The bias of a Linear gets 1000. (Downloads 3 GB.)
# Why a trainer cares: a model whose norms are held in bf16 trains them with gradients that are
#   wrong by a factor, and the fp32 run beside it does not. Under autocast weights of norms stay
#   fp32.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.15.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import torch

torch.set_num_threads(1)
rows = torch.randn(1000, 64, generator=torch.Generator().manual_seed(1))
for dtype, expected in ((torch.float32, 1000.0), (torch.bfloat16, 256.0)):
    norm, linear = torch.nn.LayerNorm(64, dtype=dtype), torch.nn.Linear(64, 64, dtype=dtype)
    for layer in (norm, linear):
        layer(rows.to(dtype)).backward(torch.ones(1000, 64, dtype=dtype))
    sums = norm.bias.grad.float().unique().tolist(), linear.bias.grad.float().unique().tolist()
    print(dtype, "bias gradients of 1,000 rows of ones: LayerNorm", sums[0], "Linear", sums[1])
    assert sums == ([expected], [1000.0])
PYTHON
echo "as found: the sum stalls at 256"
