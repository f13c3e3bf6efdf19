/* exp and tanh for vectorized loops: no branch, no call, no table, so that a loop under
 * `#pragma omp simd` becomes straight vector code at any width.
 *
 * Both follow Cody and Waite, "Software Manual for the Elementary Functions" (1980): the argument
 * is n ln 2 + r with |r| <= ln 2 / 2; a minimax polynomial gives e^r - 1 (relative error 2^-26). */
#pragma once

#include "kernels/host_device.h"

/* a * b + c, rounded once if the processor has FMA and twice otherwise, where fmaf would be a
 * library call. */
static inline float fma_f32(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum. */
#define F32_ROUNDER 0x1.8p23f

#define F32_LOG2_E   0x1.715476p0f
#define F32_LN2_HIGH 0x1.63p-1f       /* exact times any n that occurs */
#define F32_LN2_LOW  -0x1.bd0106p-13f /* ln 2 - F32_LN2_HIGH */

/* (e^r - 1 - r) / r^2 = E2 + E3 r + ... + E6 r^4. */
#define F32_E2 0.5f
#define F32_E3 0.16666543f
#define F32_E4 0.04166628f
#define F32_E5 0.008366611f
#define F32_E6 0.0013946497f

/* Returns e^r - 1 for the remainder r of x, and the bit pattern of n + F32_ROUNDER. */
static inline float exp_reduced_f32(float x, uint32_t *rounded_bits) {
    float rounded = fma_f32(x, F32_LOG2_E, F32_ROUNDER);
    float n = rounded - F32_ROUNDER;
    float r = fma_f32(n, -F32_LN2_LOW, fma_f32(n, -F32_LN2_HIGH, x));
    float q =
        fma_f32(fma_f32(fma_f32(fma_f32(F32_E6, r, F32_E5), r, F32_E4), r, F32_E3), r, F32_E2);
    *rounded_bits = f32_bits(rounded);
    return fma_f32(q, r * r, r);
}

/* e^x within 1.1 ulp (subnormal results included); exp(-inf) = 0, exp(inf) = inf, NaN stays NaN. */
static inline float exp_f32(float x) {
    /* Beyond 104 on either side the result is inf or 0. NaN passes this single comparison. */
    uint32_t sign = f32_bits(x) & 0x80000000;
    float magnitude = f32_of_bits(f32_bits(x) ^ sign);
    x = magnitude > 104.0f ? f32_of_bits(f32_bits(104.0f) | sign) : x;
    uint32_t bits;
    float p = 1.0f + exp_reduced_f32(x, &bits);
    /* 2^n in two factors, since n may lie outside the exponents of normal numbers. */
    uint32_t twice_biased = bits - f32_bits(F32_ROUNDER) + 254, half = twice_biased >> 1;
    return p * f32_of_bits(half << 23) * f32_of_bits((twice_biased - half) << 23);
}

/* tanh within 2.6 ulp, from e^(2|x|) - 1 so that nothing cancels near 0; tanh(+-inf) = +-1, NaN
 * stays NaN, -0 stays -0. */
static inline float tanh_f32(float x) {
    uint32_t sign = f32_bits(x) & 0x80000000;
    float y = 2.0f * f32_of_bits(f32_bits(x) ^ sign);
    y = y > 20.0f ? 20.0f : y; /* tanh(10) is 1 to all digits; NaN passes */
    uint32_t bits;
    float p = exp_reduced_f32(y, &bits);
    float power = f32_of_bits((bits - f32_bits(F32_ROUNDER) + 127) << 23);
    float t = fma_f32(power, p, power - 1.0f);
    return f32_of_bits(f32_bits(t / (t + 2.0f)) | sign);
}
