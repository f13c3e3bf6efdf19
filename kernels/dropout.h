/* The draws of dropout: pure functions of a key, a row and a column, the same on both backends, so
 * that the backward pass and any recomputation drop the same elements without a stored mask. */
#pragma once

#include "kernels/rounding.h"

/* Elements whose draw is below this are dropped. probability: below 1. */
static inline uint32_t dropout_threshold(double probability) {
    return (uint32_t)(probability * 0x1p32);
}

/* Returns the factor of elements that are kept. scale: another factor; 0: none. */
static inline float dropout_scale(double scale, double probability) {
    return (float)((scale == 0 ? 1 : scale) / (1 - probability));
}

static ON_HOST_AND_DEVICE uint32_t dropout_draw(struct rounding_key row_key, int64_t column) {
    return rounding_bits(row_key, (uint32_t)column);
}
