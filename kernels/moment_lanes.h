/* The functions of kernels/moment_code.h for vectors of AVX2 or AVX-512, with the same results.
 *
 * A number's exponent selects the lines that can be the largest or the smallest: one of 7 for a
 * value, 3 of 14 for a level. A permutation looks them up in tables of 8, which compilers do not
 * generate from plain loops: they would gather from memory, which is slower than all lines. */
#pragma once

#include <immintrin.h>

#include "kernels/moment_code.h"

#ifdef __AVX512BW__
enum { MOMENT_LANES = 16 };
#define MOMENT_AVX(name) _mm512_##name
#else
enum { MOMENT_LANES = 8 };
#define MOMENT_AVX(name) _mm256_##name
#endif

typedef float lanes_f32 __attribute__((vector_size(4 * MOMENT_LANES)));
typedef long long lanes_bits __attribute__((vector_size(4 * MOMENT_LANES))); /* of intrinsics */
typedef int32_t lanes_i32 __attribute__((vector_size(4 * MOMENT_LANES)));

static inline lanes_f32 lanes_smaller(lanes_f32 a, lanes_f32 b) {
    return MOMENT_AVX(min_ps)(a, b); /* b if one of them is a NaN, as in moment_smaller */
}
static inline lanes_f32 lanes_larger(lanes_f32 a, lanes_f32 b) {
    return MOMENT_AVX(max_ps)(a, b);
}

/* Returns table[index % 8] for each index. */
static inline lanes_f32 lanes_lookup(const float table[8], lanes_i32 index) {
    const __m256 entries = _mm256_loadu_ps(table);
#ifdef __AVX512BW__
    return _mm512_permutexvar_ps((lanes_bits)index, _mm512_broadcast_f32x8(entries));
#else
    return _mm256_permutevar8x32_ps(entries, (lanes_bits)index);
#endif
}

static inline lanes_i32 lanes_of_bytes(const uint8_t *bytes) {
#ifdef __AVX512BW__
    return (lanes_i32)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)bytes));
#else
    return (lanes_i32)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes));
#endif
}

/* Stores numbers from 0 to 255. */
static inline void lanes_store_bytes(uint8_t *bytes, lanes_i32 numbers) {
#ifdef __AVX512BW__
    _mm_storeu_si128((__m128i *)bytes, _mm512_cvtepi32_epi8((lanes_bits)numbers));
#else
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128((lanes_bits)numbers),
                                           _mm256_extracti128_si256((lanes_bits)numbers, 1));
    _mm_storel_epi64((__m128i *)bytes, _mm_packus_epi16(words, words));
#endif
}

/* moment_magnitude. The last entry of a table is for the level above all decades, whose value is 1,
 * and for level 0 of unsigned codes, whose p is 1. */
static inline __attribute__((always_inline)) lanes_f32 lanes_magnitude(lanes_i32 level,
                                                                       const int is_signed) {
    const int factor = is_signed ? 1 : 2;
#define X(intervals, power) MOMENT_VALUE_SLOPE((intervals)*factor, power),
    const float slopes[8] = {MOMENT_DECADES(X) 1};
#undef X
#define X(intervals, power) MOMENT_VALUE_HEIGHT((intervals)*factor, power),
    const float heights[8] = {MOMENT_DECADES(X) - 1};
#undef X
    const lanes_f32 zero = {0};
    const lanes_f32 p = MOMENT_AVX(cvtepi32_ps)((lanes_bits)(level + (factor - 1)));
    const lanes_i32 decade = ((lanes_i32)p >> 23) + 2 - factor;
    const lanes_f32 line = lanes_lookup(slopes, decade) * p + lanes_lookup(heights, decade);
    return lanes_smaller(lanes_larger(line, zero), zero + 1);
}

/* moment_level. The range of magnitudes is divided into 8 parts so that a part begins in one decade
 * and ends in the same or the next one: three lines can be the smallest, those of both decades and
 * the one through the border between them. The upper 16 bits of an fp32 magnitude are a rough
 * logarithm, which has 128 steps to a binade; a part is 65536 / 165 of them, or 3.1 binades. Parts
 * have the entries 1 to 7 and 0, from the one that begins at 2^-24.6, below the border of zero. */
static inline __attribute__((always_inline)) lanes_i32 lanes_level(lanes_f32 magnitude,
                                                                   const int is_signed) {
    const int factor = is_signed ? 1 : 2, last_n = 64 * factor;
#define X(intervals, power) , MOMENT_LEVEL_SLOPE((intervals)*factor, power)
    const float slopes[9] = {MOMENT_LEVEL_SLOPE(last_n, 1),
                             MOMENT_ZERO_SLOPE(factor) MOMENT_DECADES(X)};
#undef X
#define X(intervals, power) , MOMENT_LEVEL_HEIGHT((intervals)*factor)
    const float heights[9] = {MOMENT_LEVEL_HEIGHT(last_n),
                              MOMENT_ZERO_HEIGHT(factor) MOMENT_DECADES(X)};
#undef X
#define X(intervals, power) MOMENT_BORDER_SLOPE((intervals)*factor, power),
    const float border_slopes[8] = {MOMENT_LEVEL_SLOPE(last_n, 1), MOMENT_LEVEL_SLOPE(factor, 1e6),
                                    MOMENT_BORDERS(X)};
#undef X
#define X(intervals, power) MOMENT_BORDER_HEIGHT((intervals)*factor),
    const float border_heights[8] = {MOMENT_LEVEL_HEIGHT(last_n), MOMENT_LEVEL_HEIGHT(factor),
                                     MOMENT_BORDERS(X)};
#undef X
    const lanes_f32 zero = {0}, m = magnitude;
    const lanes_i32 bits = (lanes_i32)lanes_larger(m, zero + 0x1p-24f);
    const lanes_bits per_part = MOMENT_AVX(set1_epi16)(165);
    const lanes_i32 part = (lanes_i32)MOMENT_AVX(mulhi_epu16)((lanes_bits)bits, per_part) >> 16;
    lanes_f32 p = zero + (float)(128 * factor - 1);
    p = lanes_smaller(lanes_lookup(slopes, part) * m + lanes_lookup(heights, part), p);
    p = lanes_smaller(lanes_lookup(slopes + 1, part) * m + lanes_lookup(heights + 1, part), p);
    p = lanes_smaller(lanes_lookup(border_slopes, part) * m + lanes_lookup(border_heights, part),
                      p);
    return (lanes_i32)MOMENT_AVX(cvttps_epi32)(p) - (factor - 1) - (m >= MOMENT_LAST(factor));
}

/* moment_level_stochastic */
static inline __attribute__((always_inline)) lanes_i32
lanes_level_stochastic(lanes_f32 magnitude, lanes_i32 random, const int is_signed) {
    const int last = is_signed ? 128 : 255;
    lanes_i32 level = lanes_level(magnitude, is_signed);
    level += (magnitude < lanes_magnitude(level, is_signed)) | (level == last);
    const lanes_f32 low = lanes_magnitude(level, is_signed);
    const lanes_f32 step = lanes_magnitude(level + 1, is_signed) - low;
    const lanes_f32 part = MOMENT_AVX(cvtepi32_ps)((lanes_bits)random) * step;
    return level - (part < (magnitude - low) * 65536.0f);
}

/* moment_value */
static inline __attribute__((always_inline)) lanes_f32 lanes_value(lanes_i32 code,
                                                                   const int is_signed) {
    if (!is_signed) return lanes_magnitude(code, 0);
    const lanes_i32 negative = code < 127, level = ((code - 127) ^ negative) - negative;
    return (lanes_f32)((lanes_i32)lanes_magnitude(level, 1) ^ (negative & INT32_MIN));
}

/* moment_code; `negative` is 0 or -1. */
static inline __attribute__((always_inline)) lanes_i32
lanes_code(lanes_i32 level, lanes_i32 negative, const int is_signed) {
    if (!is_signed) return level;
    const lanes_i32 code = ((level ^ negative) - negative) + 127;
    return code & ~(code >> 31); /* -1, of the negative of the last level, becomes 0 */
}

/* Returns fabsf(value). */
static inline lanes_f32 lanes_absolute(lanes_f32 value) {
    return (lanes_f32)((lanes_i32)value & INT32_MAX);
}
