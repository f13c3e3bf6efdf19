/* Blocks of moments in 8 bits (kernels/moment_code.h) in memory of the host. Functions are inline,
 * so that the CPU's operations compile their loops for each CPU level. `first` and `count` are
 * multiples of MOMENT_BLOCK. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/moment_code.h"
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
#pragma omp simd
    for (int i = 0; i < MOMENT_BLOCK; i++) values[i] = moment_value(codes[i], is_signed) * scale;
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

/* Returns the scale of a block. */
static inline float moment_blocks_scale(const float *values) {
    float largest = MOMENT_SCALE_MIN;
#pragma omp simd reduction(max : largest)
    for (int i = 0; i < MOMENT_BLOCK; i++) {
        float magnitude = fabsf(values[i]);
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* Writes the codes of a block. The flags are constants after inlining. The second moment of an
 * element is rounded by the upper half of its random bits, as in bf16. */
static inline __attribute__((always_inline)) void
moment_blocks_round(uint8_t *restrict codes, const float *restrict values, float scale,
                    const bool is_signed, const bool stochastic, struct rounding_key key,
                    uint32_t index) {
    const float inverse = 1 / scale;
#pragma omp simd
    for (int i = 0; i < MOMENT_BLOCK; i++) {
        const float magnitude = fabsf(values[i]) * inverse;
        int level;
        if (stochastic) {
            uint32_t random = rounding_bits(key, index + (uint32_t)i);
            random = is_signed ? random & 0xffff : random >> 16;
            level = moment_level_stochastic(magnitude, random, is_signed);
        } else level = moment_level(magnitude, is_signed);
        codes[i] = (uint8_t)moment_code(level, values[i] < 0, is_signed);
    }
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
