#!/usr/bin/env bash
# -fmad=false does not hold for half and bf16 once PTX is compiled later.
#
# Guess: PTX that nvcc -fmad=false wrote keeps products and sums apart on every later GPU.
# Seen with nvcc 13.0.88: float operations are written as mul.rn and add.rn, which must not be
#   fused. __hmul and __hadd become mul.f16 and add.f16 without .rn. ptxas, which the driver calls
#   without -fmad=false for a newer GPU, fuses them into one HFMA2 with one rounding instead of
#   two.
# Why a trainer cares: machine code of one build and PTX of the same build give other bits in 16
#   bit, so "the same bits on every GPU" holds only where the _rn forms are written out. No GPU is
#   needed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 \
    nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 \
    nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37
toolkit=$(echo "$folder"/venv/lib/python3*/site-packages/nvidia/cu13)
export PATH=$toolkit/bin:$PATH # cuobjdump calls nvdisasm
cd "$folder"
cat >kernels.cu <<'CUDA'
#include <cuda_fp16.h>
__global__ void single(float *p) { p[0] = p[1] * p[2] + p[3]; }
__global__ void half_(__half *p) { p[0] = __hadd(__hmul(p[1], p[2]), p[3]); }
__global__ void half_rn(__half *p) { p[0] = __hadd_rn(__hmul_rn(p[1], p[2]), p[3]); }
CUDA
nvcc -fmad=false -arch=compute_80 -ptx -o kernels.ptx kernels.cu
ptxas -arch=sm_90 -o kernels.cubin kernels.ptx
fused() { # KERNEL: the number of its fused instructions
    cuobjdump -sass kernels.cubin | sed -n "/Function : .*$1P/,/Function :/p" |
        sed '1!{/Function :/d}' | grep -cE 'FFMA|HFMA2' || true
}
echo "fused after ptxas: float $(fused 6single), half $(fused 5half_)," \
    "half with _rn $(fused 7half_rn)"
[ "$(fused 6single)" -eq 0 ]
[ "$(fused 5half_)" -ge 1 ]
[ "$(fused 7half_rn)" -eq 0 ]
echo "as found: only the _rn forms keep two roundings in 16 bit"
