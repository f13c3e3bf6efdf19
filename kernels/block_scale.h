/* Scales of blocks of elements, and the rounding of elements (quantize_format_in_blocks).
 *
 *     E8M0   a power of two from 2^-127 to 2^127: microscaling formats (OCP Microscaling Formats
 *            Specification 1.0) and fp8 in blocks (DeepSeek-V3, 2024)
 *     E4M3   of an fp32 scale of the tensor: NVFP4 (NVIDIA 2025, arXiv 2509.25149)
 *
 *     E2M1   elements of 4 bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign
 *
 * Values of a block are multiplied by a factor and rounded to elements. An element times its scale
 * has at most 6 significant bits, so bf16 represents it exactly, but for values below 2^-133. */
#pragma once

#include "kernels/float8.h"
#include "kernels/quantize_format.h"

/* Largest value, the exponent of its power of two, bits of the fraction, and the exponent of the
 * smallest normal value. */
static ON_HOST_AND_DEVICE float element_max(enum dtype element) {
    return element == DTYPE_E2M1 ? 6.0f : f8_format(element).max;
}
static ON_HOST_AND_DEVICE int element_max_exponent(enum dtype element) {
    return element == DTYPE_E2M1 ? 2 : element == DTYPE_E4M3 ? 8 : 15;
}
static ON_HOST_AND_DEVICE int element_fraction(enum dtype element) {
    return element == DTYPE_E2M1 ? 1 : f8_format(element).fraction;
}
static ON_HOST_AND_DEVICE int element_least_exponent(enum dtype element) {
    return element == DTYPE_E2M1 ? 0 : 1 - f8_format(element).bias;
}

/* Returns the exponent of a block's scale, from -127 to 126. SCALE_POWER_OF_TWO: of amax / max,
 * rounded up, so that nothing saturates, as NVIDIA's converters do; SCALE_OF_EXPONENT: that of amax
 * less that of max, the rule of the specification. amax is finite. */
static ON_HOST_AND_DEVICE int e8m0_exponent(float amax, enum dtype element,
                                            enum scale_rounding rounding) {
    bool up = rounding == SCALE_POWER_OF_TWO;
    uint32_t bits = f32_bits(up ? amax / element_max(element) : amax);
    int exponent = (int)(bits >> 23) - 127;
    if (up) exponent += bits < 0x800000 ? bits > 0x400000 : (bits & 0x7fffff) > 0;
    else exponent -= element_max_exponent(element);
    return exponent < -127 ? -127 : exponent;
}

/* Returns 2^exponent, which may be subnormal. */
static ON_HOST_AND_DEVICE float e8m0_power(int exponent) {
    return exponent < -126 ? f32_of_bits(0x400000) : f8_power(exponent);
}

/* Returns the scale of a tensor of E2M1 elements whose blocks have scales in E4M3: its largest
 * value becomes the largest element times the largest scale. The lower limit keeps factors finite.
 */
static ON_HOST_AND_DEVICE float tensor_scale(float amax) {
    float scale = amax / (6.0f * 448.0f);
    if (amax == 0) return 1;
    return scale < 0x1p-119f ? 0x1p-119f : scale;
}

/* Returns the scale of a block of E2M1 elements, in units of the tensor's scale: a normal value of
 * E4M3, as torchao has it. */
static ON_HOST_AND_DEVICE float e4m3_scale(float amax, float tensor_scale) {
    float scale = amax / 6.0f / tensor_scale;
    if (scale < 0x1p-6f) scale = 0x1p-6f;
    return f8_widen(f8_round(scale, 1, DTYPE_E4M3), DTYPE_E4M3);
}

/* Factors of a block's values before and after rounding. */
struct block_factors {
    float down, up;
};

/* amax: finite; of a block of zeros, 0. tensor_scale: of scales in E4M3 only. */
static ON_HOST_AND_DEVICE struct block_factors block_factors(float amax, float tensor_scale,
                                                             enum dtype element, enum dtype scale,
                                                             enum scale_rounding rounding) {
    struct block_factors factors = {1, 1};
    if (amax == 0) return factors;
    if (scale == DTYPE_E4M3) {
        factors.up = e4m3_scale(amax, tensor_scale);
        factors.down = (1 / tensor_scale) / factors.up;
    } else {
        int exponent = e8m0_exponent(amax, element, rounding);
        factors.up = e8m0_power(exponent), factors.down = e8m0_power(-exponent);
    }
    return factors;
}

/* Returns the bits of the power of two of a magnitude, at least the smallest normal value's. */
static ON_HOST_AND_DEVICE uint32_t element_exponent_bits(uint32_t magnitude, enum dtype element) {
    const uint32_t least = (uint32_t)(127 + element_least_exponent(element)) << 23;
    uint32_t exponent = magnitude & 0x7f800000;
    return exponent < least ? least : exponent;
}

static ON_HOST_AND_DEVICE float element_saturated(float magnitude, uint32_t sign,
                                                  enum dtype element) {
    const float max = element_max(element);
    return f32_of_bits(f32_bits(magnitude > max ? max : magnitude) | sign);
}

/* Returns the nearest value of the element's dtype, ties to even; beyond the largest, that. Adding
 * a number whose last bit is the distance of neighbours at this magnitude rounds to it. */
static ON_HOST_AND_DEVICE float element_round(float value, enum dtype element) {
    uint32_t bits = f32_bits(value), magnitude = bits & 0x7fffffff;
    uint32_t exponent = element_exponent_bits(magnitude, element);
    float aligned =
        f32_of_bits(exponent + ((uint32_t)(23 - element_fraction(element)) << 23) + 0x400000);
    float rounded = (f32_of_bits(magnitude) + aligned) - aligned;
    return element_saturated(rounded, bits & 0x80000000, element);
}

/* Returns one of the two values of the element's dtype next to value: the larger magnitude with a
 * probability of the distance to the smaller one, so that the mean is value, up to 2^-16 of that
 * distance. random: 32 random bits, of which the upper 16 count. */
static ON_HOST_AND_DEVICE float element_round_stochastic(float value, enum dtype element,
                                                         uint32_t random) {
    uint32_t bits = f32_bits(value), magnitude = bits & 0x7fffffff;
    uint32_t distance =
        element_exponent_bits(magnitude, element) - ((uint32_t)element_fraction(element) << 23);
    const float most = (float)(4 << element_fraction(element)); /* also for what is not finite */
    float units = f32_of_bits(magnitude) * f32_of_bits((254u << 23) - distance);
    units = units < most ? units : most;
    float rounded = (float)(int32_t)(units + (float)(int32_t)(random >> 16) * 0x1p-16f);
    return element_saturated(rounded * f32_of_bits(distance), bits & 0x80000000, element);
}

/* Returns the code of a value of the element's dtype; and the value of a code, the lowest bits.
 * Codes of 4 bits are stored in pairs, the first in the lower half of a byte. */
static ON_HOST_AND_DEVICE uint32_t element_code(float value, enum dtype element) {
    uint32_t bits = f32_bits(value), magnitude = bits & 0x7fffffff;
    if (element != DTYPE_E2M1) return f8_round(value, 1, element);
    /* From 1 on exponent and first bit of the fraction count up; 0.5 is code 1. */
    uint32_t code = magnitude >= 0x3f800000 ? (magnitude >> 22) - 252 : magnitude > 0;
    return (code > 7 ? 7 : code) | (bits >> 28 & 8);
}
static ON_HOST_AND_DEVICE float element_value(uint32_t code, enum dtype element) {
    if (element != DTYPE_E2M1) return f8_widen(code & 0xff, element);
    uint32_t magnitude = code & 7, bits = (magnitude + 252) << 22;
    float value = magnitude < 2 ? 0.5f * (float)(int32_t)magnitude : f32_of_bits(bits);
    return f32_of_bits(f32_bits(value) | (code & 8) << 28);
}

/* Returns the code of a block's scale, block_factors.up; NaN marks a block that is not finite. */
static ON_HOST_AND_DEVICE uint8_t block_scale_code(float scale, enum dtype dtype) {
    uint32_t bits = f32_bits(scale);
    if ((bits & 0x7fffffff) > 0x7f800000) return dtype == DTYPE_E8M0 ? 0xff : 0x7f;
    return (uint8_t)(dtype == DTYPE_E8M0 ? bits >> 23 : f8_round(scale, 1, DTYPE_E4M3));
}
static ON_HOST_AND_DEVICE float block_scale_value(uint8_t code, enum dtype dtype) {
    if (dtype == DTYPE_E4M3) return f8_widen(code, DTYPE_E4M3);
    return code == 0xff ? f32_of_bits(0x7fc00000) : e8m0_power((int)code - 127);
}
