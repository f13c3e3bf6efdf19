/* The draws of dropout: pure functions of a key, a row and a column, the same on both backends, so
 * that the backward pass and any recomputation drop the same elements without a stored mask. */
#pragma once

#include "kernels/rounding.h"

/* Elements whose draw is below this are dropped. probability: below 1. */
static inline uint32_t dropout_threshold(double probability) {
    return (uint32_t)(probability * 0x1p32);
}

/* Returns the key of a row, from that of the tensor. */
static ON_HOST_AND_DEVICE struct rounding_key dropout_row_key(struct rounding_key key,
                                                              int64_t row) {
    uint32_t low = (uint32_t)row, high = (uint32_t)((uint64_t)row >> 32);
    struct rounding_key of_high = {key.second, key.first ^ high};
    struct rounding_key of_row = {rounding_bits(key, low), rounding_bits(of_high, low)};
    return of_row;
}

static ON_HOST_AND_DEVICE uint32_t dropout_draw(struct rounding_key row_key, int64_t column) {
    return rounding_bits(row_key, (uint32_t)column);
}
