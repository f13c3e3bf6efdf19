/* The two 8-bit formats, for vectorized loops and GPUs: no branch, no table.
 *
 *            sign exponent fraction  bias  largest  smallest normal, subnormal  not finite
 *     E4M3   1    4        3         7     448      2^-6   2^-9                 NaN: all ones
 *     E5M2   1    5        2         15    57344    2^-14  2^-16                as in fp16
 *
 * Micikevicius et al. 2022. A code is at most 0x7f with the sign above it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/dtype_list.h"
#include "kernels/host_device.h"

struct f8_format {
    int fraction, bias;         /* bits of the fraction; bias of the exponent */
    uint32_t largest, infinity; /* codes of the largest value, and of infinity or NaN */
    float max;                  /* the largest value */
};

static ON_HOST_AND_DEVICE struct f8_format f8_format(enum dtype dtype) {
    struct f8_format format = {0, 0, 0, 0, 0};
#define X(NAME, name, bits, type, fraction, bias, largest, infinity, max)   \
    const struct f8_format NAME = {fraction, bias, largest, infinity, max}; \
    if (dtype == DTYPE_##NAME) format = NAME;
    DTYPES_QUANTIZED(X)
#undef X
    return format;
}

/* Returns 2^exponent, which must be normal. */
static ON_HOST_AND_DEVICE float f8_power(int exponent) {
    return f32_of_bits((uint32_t)(127 + exponent) << 23);
}

/* Subnormal values are converted from integers: as fp32 their bits would be subnormal too, which
 * processors multiply slowly. */
static ON_HOST_AND_DEVICE float f8_widen(uint32_t code, enum dtype dtype) {
    const struct f8_format f = f8_format(dtype);
    uint32_t sign = (code & 0x80) << 24, magnitude = code & 0x7f;
    uint32_t quiet = magnitude & 3 ? 0x400000 : 0; /* quiet bit of E5M2's NaN */
    uint32_t bad = f.infinity == 0x7f ? 0x7fc00000 : 0x7f800000 | (magnitude & 3) << 21 | quiet;
    float small = (float)(int32_t)magnitude * f8_power(1 - f.bias - f.fraction);
    uint32_t bits = (magnitude << (23 - f.fraction)) + ((uint32_t)(127 - f.bias) << 23);
    bits = magnitude < 1u << f.fraction ? f32_bits(small) : bits;
    return f32_of_bits(sign | (magnitude >= f.infinity ? bad : bits));
}

/* Returns the code nearest to value * scale, ties to even. Finite values saturate, even if the
 * product overflows. Below the smallest normal number, adding a power of two aligns the last bit
 * kept with that of fp32. */
static ON_HOST_AND_DEVICE uint32_t f8_round(float value, float scale, enum dtype dtype) {
    const struct f8_format f = f8_format(dtype);
    const int drop = 23 - f.fraction;
    const uint32_t base = (uint32_t)(127 - f.bias) << 23, least = (uint32_t)(128 - f.bias) << 23;
    const uint32_t aligned = (uint32_t)(128 - f.bias + drop) << 23;
    uint32_t bits = f32_bits(value), original = bits & 0x7fffffff;
    uint32_t magnitude = f32_bits(value * scale) & 0x7fffffff;
    uint32_t normal = (magnitude - base + (1u << (drop - 1)) - 1 + (magnitude >> drop & 1)) >> drop;
    uint32_t subnormal = f32_bits(f32_of_bits(magnitude) + f32_of_bits(aligned)) - aligned;
    uint32_t code = magnitude < least ? subnormal : normal;
    code = magnitude >= f32_bits(f.max) ? f.largest : code;
    uint32_t bad = original > 0x7f800000 ? 0x7f : f.infinity;
    code = original >= 0x7f800000 ? bad : code;
    return code | (bits >> 24 & 0x80);
}

/* Returns the factor that values are multiplied by before rounding; see quantize in
 * kernels/quantize_args.h. */
static ON_HOST_AND_DEVICE float f8_scale(float amax, enum dtype dtype, bool power_of_two) {
    float scale = amax > 0 ? f8_format(dtype).max / amax : 1.0f;
    if (scale > 0x1p126f) scale = 0x1p126f;
    return power_of_two ? f32_of_bits(f32_bits(scale) & 0x7f800000) : scale;
}
