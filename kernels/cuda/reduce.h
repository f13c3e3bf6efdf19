/* Sums and maxima over the threads of a warp or block, in a fixed order. */
#pragma once

#include "kernels/cuda/device.h"

/* Every lane gets the sum; T is float or double. */
template <typename T> static __device__ __forceinline__ T warp_sum(T value) {
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

static __device__ __forceinline__ float warp_max(float value) {
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

/* Every thread of a block of THREADS (a multiple of 32 up to 1024) gets the result; all must
 * call. */
template <int THREADS, typename T> static __device__ T block_sum(T value) {
    __shared__ T part[THREADS / WARP];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    value = warp_sum(value);
    if (lane == 0) part[warp] = value;
    __syncthreads();
    value = warp_sum(lane < THREADS / WARP ? part[lane] : T(0));
    __syncthreads(); /* part may be rewritten by the next call */
    return value;
}

template <int THREADS> static __device__ float block_max(float value) {
    __shared__ float part[THREADS / WARP];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    value = warp_max(value);
    if (lane == 0) part[warp] = value;
    __syncthreads();
    value = warp_max(lane < THREADS / WARP ? part[lane] : -INFINITY);
    __syncthreads();
    return value;
}
