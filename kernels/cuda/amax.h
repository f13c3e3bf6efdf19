/* amax of a tensor (struct amax), tracked by kernels that have its values in registers: first per
 * thread, then per block, and an atomic merges the block's into the tensor's. A maximum does not
 * depend on the order. */
#pragma once

#include "kernels/cuda/columns.h"

static const uint32_t NOT_FINITE =
    0x7f800000; /* bits of infinity's magnitude; infinities and NaNs are at or above */

/* Largest magnitudes among the values of one thread. */
struct magnitudes {
    uint32_t finite, any; /* bits of the largest finite magnitude, and of the largest one */
};

static __device__ __forceinline__ void track_value(struct magnitudes *seen, float value) {
    uint32_t bits = __float_as_uint(value) & 0x7fffffff;
    seen->any = max(seen->any, bits);
    seen->finite = max(seen->finite, bits < NOT_FINITE ? bits : 0u);
}

/* Tracks values as rounded to the stored type. */
template <typename T, int N>
static __device__ __forceinline__ void track_stored(struct magnitudes *seen, const float *values) {
    for (int i = 0; i < N; i++) track_value(seen, rounded<T>(values[i]));
}

static __device__ __forceinline__ void
track_array(struct magnitudes *seen, const struct array &array, const float *values, int count) {
    STORAGE_SWITCH(array.dtype, T, {
        for (int i = 0; i < PACK; i++)
            if (i < count) track_value(seen, rounded<T>(values[i]));
    });
}

static __device__ __forceinline__ struct magnitudes warp_magnitudes(struct magnitudes own) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        own.finite = max(own.finite, __shfl_xor_sync(0xffffffffu, own.finite, offset));
        own.any = max(own.any, __shfl_xor_sync(0xffffffffu, own.any, offset));
    }
    return own;
}

/* Merges the warp's magnitudes into track_amax, for blocks whose warps end apart. The maximum is
 * found early, and reading it saves most of the atomics. */
static __device__ __forceinline__ void merge_amax_of_warp(struct amax *track_amax,
                                                          struct magnitudes own) {
    own = warp_magnitudes(own);
    if (threadIdx.x % WARP > 0) return;
    if (own.finite > __ldcg(&track_amax->largest)) atomicMax(&track_amax->largest, own.finite);
    if (own.any >= NOT_FINITE) atomicOr(&track_amax->not_finite, 1u);
}

/* Merges the block's magnitudes into track_amax. All threads of a block of at most 1024 must
 * call. */
static inline __device__ void merge_amax(struct amax *track_amax, struct magnitudes own) {
    __shared__ struct magnitudes part[1024 / WARP];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    own = warp_magnitudes(own);
    if (lane == 0) part[warp] = own;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < (int)blockDim.x / WARP; i++) {
        own.finite = max(own.finite, part[i].finite);
        own.any = max(own.any, part[i].any);
    }
    if (own.finite) atomicMax(&track_amax->largest, own.finite);
    if (own.any >= NOT_FINITE) atomicOr(&track_amax->not_finite, 1u);
}
