#include "kernels/rounding.h"

#include <string.h>

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Adding half of the last bit kept to the magnitude: a tie carries. */
static uint32_t nearest_upper(uint32_t bits) {
    uint32_t quiet_nan = bits | 0x400000;
    return ((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : bits + 0x8000) >> 16;
}

uint16_t bf16_from_master(float value) {
    return (uint16_t)nearest_upper(bits_of(value));
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
        uint32_t bits = bits_of(values[i]), high = nearest_upper(bits);
        uint32_t nan = (bits & 0x7fffffff) > 0x7f800000;
        upper[i] = (uint16_t)high;
        remainder[i] = (int16_t)(nan ? 0 : bits - (high << 16));
    }
}

void join_masters(float *restrict values, const uint16_t *restrict upper,
                  const int16_t *restrict remainder, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = ((uint32_t)upper[i] << 16) + (uint32_t)(int32_t)remainder[i];
        memcpy(&values[i], &bits, sizeof bits);
    }
}
