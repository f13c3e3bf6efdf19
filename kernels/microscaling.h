/* Microscaling formats (MX): blocks of elements that share a scale in E8M0, a power of two from
 * 2^-127 to 2^127. Source: OCP Microscaling Formats Specification 1.0.
 *
 *     E2M1: sign, 2 bits of exponent, 1 of fraction: 0, 0.5, 1, 1.5, 2, 3, 4, 6
 *
 * Values of a block are rounded after a division by the scale. Element times scale has at most 4
 * significant bits, so bf16 represents it exactly, but for values below 2^-133. */
#pragma once

#include "kernels/float8.h"
#include "kernels/quantize_format.h"

/* Largest value, and the exponent of its power of two. */
static ON_HOST_AND_DEVICE float mx_max(enum dtype element) {
    return element == DTYPE_E2M1 ? 6.0f : f8_format(element).max;
}
static ON_HOST_AND_DEVICE int mx_max_exponent(enum dtype element) {
    return element == DTYPE_E2M1 ? 2 : element == DTYPE_E4M3 ? 8 : 15;
}

/* Returns the exponent of a block's scale, from -127 to 126. SCALE_POWER_OF_TWO: of amax / max,
 * rounded up, so that nothing saturates, as NVIDIA's converters do; SCALE_OF_EXPONENT: that of amax
 * less that of max, the rule of the specification. amax is finite. */
static ON_HOST_AND_DEVICE int mx_exponent(float amax, enum dtype element,
                                          enum scale_rounding rounding) {
    bool up = rounding == SCALE_POWER_OF_TWO;
    uint32_t bits = f32_bits(up ? amax / mx_max(element) : amax);
    int exponent = (int)(bits >> 23) - 127;
    if (up) exponent += bits < 0x800000 ? bits > 0x400000 : (bits & 0x7fffff) > 0;
    else exponent -= mx_max_exponent(element);
    return exponent < -127 ? -127 : exponent;
}

/* Returns 2^exponent, which may be subnormal. */
static ON_HOST_AND_DEVICE float mx_power(int exponent) {
    return exponent < -126 ? f32_of_bits(0x400000) : f8_power(exponent);
}

/* Returns the nearest value of the element's dtype, ties to even; beyond the largest, that. Adding a
 * number whose last bit is the distance of neighbours at this magnitude rounds to it. */
static ON_HOST_AND_DEVICE float mx_round(float value, enum dtype element) {
    const int fraction = element == DTYPE_E2M1 ? 1 : f8_format(element).fraction;
    const int least = element == DTYPE_E2M1 ? 0 : 1 - f8_format(element).bias;
    const uint32_t least_bits = (uint32_t)(127 + least) << 23;
    const float max = mx_max(element);
    uint32_t bits = f32_bits(value), magnitude = bits & 0x7fffffff;
    uint32_t exponent = magnitude & 0x7f800000;
    if (exponent < least_bits) exponent = least_bits;
    float aligned = f32_of_bits(exponent + ((uint32_t)(23 - fraction) << 23) + 0x400000);
    float rounded = (f32_of_bits(magnitude) + aligned) - aligned;
    rounded = rounded > max ? max : rounded;
    return f32_of_bits(f32_bits(rounded) | (bits & 0x80000000));
}
