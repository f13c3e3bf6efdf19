/* Blocks of moments in 8 bits (kernels/moment_code.h) in memory of the host. Functions are inline,
 * so that the CPU's operations compile their loops for each CPU level. `first` and `count` are
 * multiples of MOMENT_BLOCK. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/moment_code.h"
#ifdef __AVX2__
#include "kernels/moment_lanes.h"
#endif
#include "kernels/rounding.h"

struct moment_blocks {
    uint8_t *codes; /* [P] */
    float *scales;  /* [P / MOMENT_BLOCK] */
    int moment;     /* 0, or 1 for AdamW's second one, whose codes are unsigned */
    bool stochastic;
};

/* Computes the values of a block. The flag is a constant after inlining. */
static inline __attribute__((always_inline)) void moment_blocks_widen(float *restrict values,
                                                                      const uint8_t *restrict codes,
                                                                      float scale,
                                                                      const bool is_signed) {
#ifdef __AVX2__
    for (int i = 0; i < MOMENT_BLOCK; i += MOMENT_LANES) {
        const lanes_f32 v = lanes_value(lanes_of_bytes(codes + i), is_signed) * scale;
        memcpy(values + i, &v, sizeof v);
    }
#else
#pragma omp simd
    for (int i = 0; i < MOMENT_BLOCK; i++) values[i] = moment_value(codes[i], is_signed) * scale;
#endif
}

/* Computes the values of elements first .. first + count. */
static inline void moment_blocks_load(float *values, const struct moment_blocks *blocks,
                                      int64_t first, int64_t count) {
    for (int64_t block = 0; block < count; block += MOMENT_BLOCK) {
        const uint8_t *codes = blocks->codes + first + block;
        const float scale = blocks->scales[(first + block) / MOMENT_BLOCK];
        if (blocks->moment == 0) moment_blocks_widen(values + block, codes, scale, true);
        else moment_blocks_widen(values + block, codes, scale, false);
    }
}

/* Returns the scale of a block. Four chains of maxima overlap; a single one would wait for each
 * maximum in turn. A NaN is never the largest. */
static inline float moment_blocks_scale(const float *values) {
    enum { QUARTER = MOMENT_BLOCK / 4 };
    float of_four[QUARTER], largest = MOMENT_SCALE_MIN;
#pragma omp simd
    for (int i = 0; i < QUARTER; i++) {
        of_four[i] = MOMENT_SCALE_MIN;
        for (int j = 0; j < MOMENT_BLOCK; j += QUARTER)
            of_four[i] = moment_larger(fabsf(values[i + j]), of_four[i]);
    }
#pragma omp simd reduction(max : largest)
    for (int i = 0; i < QUARTER; i++) largest = moment_larger(of_four[i], largest);
    return largest;
}

/* Writes the codes of a block. The flags are constants after inlining. The second moment of an
 * element is rounded by the upper half of its random bits, as in bf16. */
static inline __attribute__((always_inline)) void
moment_blocks_round(uint8_t *restrict codes, const float *restrict values, float scale,
                    const bool is_signed, const bool stochastic, struct rounding_key key,
                    uint32_t index) {
    const float inverse = 1 / scale;
    uint32_t random[MOMENT_BLOCK];
#pragma omp simd
    for (int i = 0; i < MOMENT_BLOCK; i++) {
        const uint32_t bits = stochastic ? rounding_bits(key, index + (uint32_t)i) : 0;
        random[i] = is_signed ? bits & 0xffff : bits >> 16;
    }
#ifdef __AVX2__
    for (int i = 0; i < MOMENT_BLOCK; i += MOMENT_LANES) {
        lanes_f32 v;
        lanes_i32 bits;
        memcpy(&v, values + i, sizeof v);
        memcpy(&bits, random + i, sizeof bits);
        const lanes_f32 magnitude = lanes_absolute(v) * inverse;
        const lanes_i32 level = stochastic ? lanes_level_stochastic(magnitude, bits, is_signed)
                                           : lanes_level(magnitude, is_signed);
        lanes_store_bytes(codes + i, lanes_code(level, v < 0, is_signed));
    }
#else
#pragma omp simd
    for (int i = 0; i < MOMENT_BLOCK; i++) {
        const float magnitude = fabsf(values[i]) * inverse;
        const int level = stochastic ? moment_level_stochastic(magnitude, random[i], is_signed)
                                     : moment_level(magnitude, is_signed);
        codes[i] = (uint8_t)moment_code(level, values[i] < 0, is_signed);
    }
#endif
}

/* Stores values. Element `first` has the random bits `index` of the key, if rounding is
 * stochastic. */
static inline void moment_blocks_store(const struct moment_blocks *b, const float *values,
                                       int64_t first, int64_t count, struct rounding_key key,
                                       uint32_t index) {
    for (int64_t block = 0; block < count; block += MOMENT_BLOCK) {
        uint8_t *codes = b->codes + first + block;
        const float *from = values + block, scale = moment_blocks_scale(from);
        const uint32_t at = index + (uint32_t)block;
        b->scales[(first + block) / MOMENT_BLOCK] = scale;
        if (b->stochastic && b->moment == 0)
            moment_blocks_round(codes, from, scale, true, true, key, at);
        else if (b->stochastic) moment_blocks_round(codes, from, scale, false, true, key, at);
        else if (b->moment == 0) moment_blocks_round(codes, from, scale, true, false, key, at);
        else moment_blocks_round(codes, from, scale, false, false, key, at);
    }
}
