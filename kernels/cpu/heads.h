/* Adjacent heads of a row of q and k, as many at a time as fit in a buffer on the stack. */
#pragma once

#include "kernels/cpu/cpu.h"

struct heads {
    float buffer[CPU_BLOCK];
    float *values;    /* [count, D], writable: for fp32 the tensor's own memory */
    int64_t at;       /* offset of the first value in the tensor */
    int64_t count, n; /* heads, and their columns */
};

/* Reads as many as fit of heads first..all - 1 of a row; size: D, at most CPU_BLOCK. */
static inline void heads_read(struct heads *heads, const struct tensor *from, int64_t row,
                              int64_t first, int64_t all, int64_t size) {
    heads->count = block_length(first, all, CPU_BLOCK / size);
    heads->n = heads->count * size;
    heads->at = row * tensor_columns(from) + first * size;
    heads->values =
        (float *)dtype_widen(heads->buffer, from->data, from->dtype, heads->at, heads->n);
}

static inline void heads_write(const struct heads *heads, const struct tensor *to) {
    if (heads->values == heads->buffer)
        dtype_store(to->data, to->dtype, heads->at, heads->values, heads->n);
}

/* Rotates a head, as documented at struct rope_args; angles [D]: cosines, then sines; sign -1
 * inverts the rotation. */
static inline void head_rotate(float *x, const float *angles, int64_t size, float sign) {
    int64_t half = size / 2;
#pragma omp simd
    for (int64_t j = 0; j < half; j++) {
        float low = x[j], high = x[j + half], sine = sign * angles[half + j];
        x[j] = low * angles[j] - high * sine;
        x[j + half] = high * angles[j] + low * sine;
    }
}

/* Returns the angles of the row's position, positions[row] or else row % length; NULL without
 * angles. */
static inline const float *angles_of(const struct tensor *angles, const int32_t *positions,
                                     int64_t row, int64_t length) {
    if (!angles) return NULL;
    int64_t position = positions ? positions[row] : row % length;
    return (const float *)angles->data + position * tensor_columns(angles);
}
