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
#include <string.h>

#include "kernels/host_device.h"

static ON_HOST_AND_DEVICE uint32_t f8_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static ON_HOST_AND_DEVICE float f8_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static ON_HOST_AND_DEVICE float f8_max(bool e4m3) {
    return e4m3 ? 448.0f : 57344.0f;
}

/* Subnormal values are converted from integers: as fp32 their bits would be subnormal too, which
 * processors multiply slowly. */
static ON_HOST_AND_DEVICE float f8_widen(uint32_t code, bool e4m3) {
    uint32_t sign = (code & 0x80) << 24, magnitude = code & 0x7f;
    uint32_t quiet = magnitude & 3 ? 0x400000 : 0; /* quiet bit of E5M2's NaN */
    uint32_t bad = e4m3 ? 0x7fc00000 : 0x7f800000 | (magnitude & 3) << 21 | quiet;
    float small = (float)(int32_t)magnitude * (e4m3 ? 0x1p-9f : 0x1p-16f);
    uint32_t bits = e4m3 ? (magnitude << 20) + (120u << 23) : (magnitude << 21) + (112u << 23);
    bits = magnitude < (e4m3 ? 8 : 4) ? f8_bits(small) : bits;
    return f8_float(sign | (magnitude >= (e4m3 ? 0x7f : 0x7c) ? bad : bits));
}

/* Returns the code nearest to value * scale, ties to even. Finite values saturate, even if the
 * product overflows. Below the smallest normal number, adding a power of two aligns the last bit
 * kept with that of fp32. */
static ON_HOST_AND_DEVICE uint32_t f8_round(float value, float scale, bool e4m3) {
    const int fraction = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, drop = 23 - fraction;
    const uint32_t base = (uint32_t)(127 - bias) << 23, least = (uint32_t)(128 - bias) << 23;
    const uint32_t aligned = (uint32_t)(128 - bias + drop) << 23;
    uint32_t bits = f8_bits(value), original = bits & 0x7fffffff;
    uint32_t magnitude = f8_bits(value * scale) & 0x7fffffff;
    uint32_t normal = (magnitude - base + (1u << (drop - 1)) - 1 + (magnitude >> drop & 1)) >> drop;
    uint32_t subnormal = f8_bits(f8_float(magnitude) + f8_float(aligned)) - aligned;
    uint32_t code = magnitude < least ? subnormal : normal;
    code = magnitude >= f8_bits(f8_max(e4m3)) ? (e4m3 ? 0x7e : 0x7b) : code;
    uint32_t bad = e4m3 || original > 0x7f800000 ? 0x7f : 0x7c;
    code = original >= 0x7f800000 ? bad : code;
    return code | (bits >> 24 & 0x80);
}

/* Returns the factor that values are multiplied by before rounding; see quantize in
 * kernels/kernels.h. */
static ON_HOST_AND_DEVICE float f8_scale(float amax, bool e4m3, bool power_of_two) {
    float scale = amax > 0 ? f8_max(e4m3) / amax : 1.0f;
    if (scale > 0x1p126f) scale = 0x1p126f;
    return power_of_two ? f8_float(f8_bits(scale) & 0x7f800000) : scale;
}
