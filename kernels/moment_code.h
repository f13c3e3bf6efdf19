/* Moments of optimizers in 8 bits (Dettmers et al. 2022), as in bitsandbytes and torchao: a block
 * of 256 consecutive elements has a scale, its largest magnitude, and each element a code.
 *
 *     element = scale * value of its code
 *
 * Signed codes are those of kernels/code_value.h (DYNAMIC8). Second moments have unsigned ones,
 * which spend the bit of the sign on the fraction: code c is 0, (p = 2 .. 255) - 1, or 255.
 *
 * Neither direction needs a table or a search, so loops over elements are vectorized. In decade k,
 * the n = 2^k intervals (unsigned: 2^(k+1)) that divide 0.1 .. 1 are numbered p = n .. 2n - 1, and
 * a magnitude is a linear function of p. The function of the next decade is steeper, and larger
 * from its first p on: the value of p is the largest of all lines. In the other direction p is the
 * smallest of all lines, rounded down, with one more line through each border between decades,
 * which is halfway between the neighboring values, as every border of rounding.
 *
 * kernels/moment_lanes.h computes the same with fewer lines, for vectors of AVX2 and AVX-512.
 *
 * Values are exact to a relative 2^-20. Rounding is to the nearest value, except within 2^-15 of
 * the distance between two values from their middle: there it may be to either. */
#pragma once

#include <stdint.h>

#include "kernels/host_device.h"

enum { MOMENT_BLOCK = 256 /* elements with one scale */ };

/* Smallest scale of a block, so that zeros can be divided by it. */
#define MOMENT_SCALE_MIN 1e-12f

/* X(intervals of signed codes, 1 / power of ten) for each decade. */
#define MOMENT_DECADES(X) X(1, 1e6) X(2, 1e5) X(4, 1e4) X(8, 1e3) X(16, 1e2) X(32, 1e1) X(64, 1.0)
/* All but the last one. */
#define MOMENT_BORDERS(X) X(1, 1e6) X(2, 1e5) X(4, 1e4) X(8, 1e3) X(16, 1e2) X(32, 1e1)

static ON_HOST_AND_DEVICE float moment_smaller(float a, float b) {
    return a < b ? a : b;
}
static ON_HOST_AND_DEVICE float moment_larger(float a, float b) {
    return a > b ? a : b;
}

/* Returns a * b + c. GPUs round it once, also where multiply-adds are not fused by themselves. */
static ON_HOST_AND_DEVICE float moment_line(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    return fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* Slope and height of the lines, given the intervals n of a decade: from p to a magnitude; from a
 * magnitude to p; and through the border after the decade, where p = 2n is one interval after it
 * and the slope is a third of its own. The line for zero is through the border of zero, which is
 * half the smallest value, with any slope that leaves out no later border. */
#define MOMENT_VALUE_SLOPE(n, power)  (float)(0.9 / (n) / (power))
#define MOMENT_VALUE_HEIGHT(n, power) (float)((0.45 / (n)-0.8) / (power))
#define MOMENT_LEVEL_SLOPE(n, power)  (float)((power) * (n) / 0.9)
#define MOMENT_LEVEL_HEIGHT(n)        (float)((n) * (8 / 9.0))
#define MOMENT_BORDER_SLOPE(n, power) (float)((power) * (n) / 2.7)
#define MOMENT_BORDER_HEIGHT(n)       (float)(2 * (n) - (n) / 2.7 - 1 / 3.0)
#define MOMENT_ZERO_SLOPE(factor)     (float)(1e6 * (factor) / 0.6)
#define MOMENT_ZERO_HEIGHT(factor)    (float)((factor) - (0.05 * (factor) + 0.225) / 0.6)

/* Smallest magnitude of the last level, 1. */
#define MOMENT_LAST(factor) (float)(1 - 0.225 / (64 * (factor)))

/* Returns the magnitude of a level: a code that counts from zero up. `is_signed` is a constant in
 * callers. */
static ON_HOST_AND_DEVICE float moment_magnitude(int level, const int is_signed) {
    const int factor = is_signed ? 1 : 2;
    const float p = (float)(level + factor - 1);
    float value = 0;
#define X(intervals, power)                                                                    \
    value = moment_larger(value, moment_line(MOMENT_VALUE_SLOPE((intervals)*factor, power), p, \
                                             MOMENT_VALUE_HEIGHT((intervals)*factor, power)));
    MOMENT_DECADES(X)
#undef X
    return moment_smaller(value, 1);
}

/* Returns the level of a magnitude of at most 1; a NaN has one of them. */
static ON_HOST_AND_DEVICE int moment_level(float magnitude, const int is_signed) {
    const int factor = is_signed ? 1 : 2;
    float p = (float)(128 * factor - 1); /* the last one but 1, whose interval is half as long */
    p = moment_smaller(
        moment_line(MOMENT_ZERO_SLOPE(factor), magnitude, MOMENT_ZERO_HEIGHT(factor)), p);
#define X(intervals, power)                                                                  \
    p = moment_smaller(moment_line(MOMENT_LEVEL_SLOPE((intervals)*factor, power), magnitude, \
                                   MOMENT_LEVEL_HEIGHT((intervals)*factor)),                 \
                       p);
    MOMENT_DECADES(X)
#undef X
#define X(intervals, power)                                                                   \
    p = moment_smaller(moment_line(MOMENT_BORDER_SLOPE((intervals)*factor, power), magnitude, \
                                   MOMENT_BORDER_HEIGHT((intervals)*factor)),                 \
                       p);
    MOMENT_BORDERS(X)
#undef X
    return (int)p - factor + 1 + (magnitude >= MOMENT_LAST(factor));
}

/* Returns the level below or above, each with a probability that keeps the mean, given 16 random
 * bits. */
static ON_HOST_AND_DEVICE int moment_level_stochastic(float magnitude, uint32_t random,
                                                      const int is_signed) {
    const int last = is_signed ? 128 : 255;
    int level = moment_level(magnitude, is_signed);
    level -= magnitude < moment_magnitude(level, is_signed) || level == last;
    const float low = moment_magnitude(level, is_signed);
    const float step = moment_magnitude(level + 1, is_signed) - low;
    return level + ((float)random * step < (magnitude - low) * 65536.0f);
}

/* Return the value of a code, and the code of a value. The largest magnitude, 1, has no negative
 * code. */
static ON_HOST_AND_DEVICE float moment_value(int code, const int is_signed) {
    if (!is_signed) return moment_magnitude(code, 0);
    const int level = code < 127 ? 127 - code : code - 127;
    const float magnitude = moment_magnitude(level, 1);
    return code < 127 ? -magnitude : magnitude;
}

static ON_HOST_AND_DEVICE int moment_code(int level, int negative, const int is_signed) {
    if (!is_signed) return level;
    return negative ? 127 - (level < 127 ? level : 127) : 127 + level;
}
