/* Master weights in tests of updates: in fp32, or split into upper halves and remainders. */
#pragma once

#include "kernels/rounding.h"
#include "test/kernels/check.h"

/* Returns the bits of a 16-bit tensor. */
static inline uint16_t *read_bits(struct check *c, const struct tensor *tensor) {
    uint16_t *bits = (uint16_t *)check_doubles(c, tensor_count(tensor));
    backend_download(&c->be, bits, tensor->data, tensor_bytes(tensor));
    return bits;
}

/* Returns the values of master weights; without remainder data they are in fp32. */
static inline double *read_masters(struct check *c, const struct tensor *master,
                                   const struct tensor *remainder) {
    if (!remainder->data) return check_read(c, master);
    int64_t count = tensor_count(master);
    double *values = check_doubles(c, count);
    const uint16_t *upper = read_bits(c, master), *lower = read_bits(c, remainder);
    for (int64_t i = 0; i < count; i++) {
        float value;
        join_masters(&value, &upper[i], (const int16_t *)&lower[i], 1);
        values[i] = value;
    }
    return values;
}

/* Replaces master weights in fp32 by the same as two 16-bit tensors. */
static inline void split_in_two(struct check *c, struct tensor *master, struct tensor *remainder) {
    int64_t count = tensor_count(master);
    double *values = check_read(c, master);
    uint16_t *upper = (uint16_t *)check_doubles(c, count);
    int16_t *lower = (int16_t *)check_doubles(c, count);
    for (int64_t i = 0; i < count; i++) {
        float value = (float)values[i];
        split_masters(&upper[i], &lower[i], &value, 1);
    }
    size_t bytes = (size_t)count * sizeof *upper;
    master->dtype = DTYPE_BF16;
    master->data = check_memory(c, CHECK_WRITE, upper, bytes);
    *remainder = *master;
    remainder->data = check_memory(c, CHECK_WRITE, lower, bytes);
}
