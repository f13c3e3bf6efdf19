#include "kernels/rounding.h"

uint16_t bf16_from_master(float value) {
    return (uint16_t)upper_half(f32_bits(value));
}

void copy_masters(void *data, enum dtype dtype, size_t offset, const float *values, size_t count) {
    if (dtype != DTYPE_BF16) {
        dtype_store(data, dtype, offset, values, count);
        return;
    }
    uint16_t *out = (uint16_t *)data + offset;
    for (size_t i = 0; i < count; i++) out[i] = bf16_from_master(values[i]);
}

void split_masters(uint16_t *restrict upper, int16_t *restrict remainder,
                   const float *restrict values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = f32_bits(values[i]);
        upper[i] = (uint16_t)upper_half(bits);
        remainder[i] = remainder_of(bits);
    }
}

void join_masters(float *restrict values, const uint16_t *restrict upper,
                  const int16_t *restrict remainder, size_t count) {
    for (size_t i = 0; i < count; i++) values[i] = f32_of_bits(joined_bits(upper[i], remainder[i]));
}
