/* CUDA as the kernels use it. nvcc includes the real headers; the tests compile the same files with
 * g++ and -include test/cuda_emulator/cuda_emulator.h, which defines all of this for the CPU.
 *
 * Rules that keep both possible: a __global__ function is static; launches use LAUNCH; inline PTX
 * is in ptx.h and ptx_hopper.h only; no thread returns before a block-wide barrier.
 *
 * nvcc chooses where it fuses multiplications and additions. A kernel that processes whole chunks
 * and single elements in different code, which have to round alike, is in a file of NO_FMAD
 * (cuda.mk), or writes __fmul_rn, __fadd_rn and fmaf out. */
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    (kernel)<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__)

/* The block's dynamic shared memory, aligned to SHARED_ALIGNMENT. */
#define DYNAMIC_SHARED(type, name)                \
    extern __shared__ __align__(SHARED_ALIGNMENT) \
    unsigned char dynamic_shared[];               \
    type *name = reinterpret_cast<type *>(dynamic_shared)
#endif

enum { WARP = 32, SHARED_ALIGNMENT = 128 /* bytes: all banks once */ };
