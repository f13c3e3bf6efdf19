/* f8_round of kernels/float8.h by the instruction that sm_89 and later have for it: the same bits.
 * The instruction turns infinity into the largest finite value and does not keep the sign of a NaN,
 * so values that are not finite are replaced. */
#pragma once

#include "kernels/cuda/ptx.h"
#include "kernels/float8.h"

template <enum dtype DTYPE>
static __device__ __forceinline__ uint32_t float8_code(float value, float scale) {
    constexpr bool E4M3 = DTYPE == DTYPE_E4M3;
    if (!FLOAT8_INSTRUCTIONS || !(E4M3 || DTYPE == DTYPE_E5M2))
        return f8_round(value, scale, DTYPE);
    uint32_t code = E4M3 ? e4m3_code(value * scale) : e5m2_code(value * scale);
    uint32_t bad = E4M3 || value != value ? 0x7f : 0x7c;
    bad |= __float_as_uint(value) >> 24 & 0x80;
    return fabsf(value) < INFINITY ? code : bad;
}
