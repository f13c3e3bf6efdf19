/* f8_round of kernels/float8.h by the instruction that sm_89 and later have for it: the same bits.
 * The instruction turns infinity into the largest finite value and does not keep the sign of a NaN,
 * so values that are not finite are replaced. */
#pragma once

#include "kernels/cuda/ptx.h"
#include "kernels/float8.h"

template <enum dtype DTYPE>
static __device__ __forceinline__ uint32_t float8_pair(float low, float high) {
    return DTYPE == DTYPE_E4M3 ? e4m3_pair(low, high) : e5m2_pair(low, high);
}

template <enum dtype DTYPE>
static __device__ __forceinline__ uint32_t float8_code(float value, float scale) {
    constexpr bool E4M3 = DTYPE == DTYPE_E4M3;
    if (!FLOAT8_INSTRUCTIONS || !(E4M3 || DTYPE == DTYPE_E5M2))
        return f8_round(value, scale, DTYPE);
    uint32_t code = float8_pair<DTYPE>(value * scale, 0);
    uint32_t bad = E4M3 || value != value ? 0x7f : 0x7c;
    bad |= __float_as_uint(value) >> 24 & 0x80;
    return fabsf(value) < INFINITY ? code : bad;
}

/* Codes of N values, an even number, of which usually all are finite. */
template <enum dtype DTYPE, int N>
static __device__ __forceinline__ void float8_codes(uint8_t codes[N], const float *values,
                                                    float scale) {
    float zero = 0; /* becomes a NaN unless all are finite */
    for (int i = 0; i < N; i++) zero = fmaf(values[i], 0, zero);
    if (FLOAT8_INSTRUCTIONS && (DTYPE == DTYPE_E4M3 || DTYPE == DTYPE_E5M2) && zero == 0) {
        for (int i = 0; i < N; i += 2) {
            uint32_t pair = float8_pair<DTYPE>(values[i] * scale, values[i + 1] * scale);
            codes[i] = (uint8_t)pair;
            codes[i + 1] = (uint8_t)(pair >> 8);
        }
    } else {
        for (int i = 0; i < N; i++) codes[i] = (uint8_t)float8_code<DTYPE>(values[i], scale);
    }
}
