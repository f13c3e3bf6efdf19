#include "model/io/gguf_types.h"

#include <math.h>
#include <string.h>

#include "kernels/dtype.h"

enum { BLOCK = 32 };

const struct gguf_type_info gguf_types[] = {
#define X(NAME, ...) [GGUF_##NAME] = {__VA_ARGS__},
    GGUF_TYPES(X)
#undef X
};

/* Returns the index of the first value of the largest magnitude, or of one that is not finite. */
static int find_largest(const float values[BLOCK]) {
    int largest = 0;
    for (int i = 0; i < BLOCK; i++) {
        if (!isfinite(values[i])) return i;
        if (fabsf(values[i]) > fabsf(values[largest])) largest = i;
    }
    return largest;
}

/* Stores the scale. Returns the factor of values, 1 / scale; 0 for zeros, and for values so small
 * that the factor would overflow, whose scale is 0 in fp16. */
static float store_scale(uint8_t *block, float scale) {
    uint16_t bits = f16_from_f32(scale);
    float factor = 1.0f / scale;
    memcpy(block, &bits, sizeof bits);
    return isfinite(factor) ? factor : 0;
}

static void store_q8_0(uint8_t *block, const float values[BLOCK], float largest) {
    float factor = store_scale(block, fabsf(largest) / 127.0f);
    for (int i = 0; i < BLOCK; i++) block[2 + i] = (uint8_t)(int8_t)roundf(values[i] * factor);
}

/* Rounds by cutting off after + 8.5. The Makefile keeps the compiler from fusing the multiplication
 * with the addition, which would round differently. */
static uint8_t q4_of(float value, float factor) {
    float shifted = value * factor + 8.5f;
    return shifted < 15 ? (uint8_t)shifted : 15;
}

static void store_q4_0(uint8_t *block, const float values[BLOCK], float largest) {
    float factor = store_scale(block, largest / -8.0f);
    for (int i = 0; i < BLOCK / 2; i++)
        block[2 + i] =
            (uint8_t)(q4_of(values[i], factor) | q4_of(values[i + BLOCK / 2], factor) << 4);
}

static int64_t store_blocks(uint8_t *blocks, enum gguf_type type, const float *values,
                            int64_t count) {
    for (int64_t i = 0; i < count; i += BLOCK, blocks += gguf_types[type].block_bytes) {
        int64_t at = i + find_largest(values + i);
        uint16_t scale;
        if (!isfinite(values[at])) return at;
        if (type == GGUF_Q8_0) store_q8_0(blocks, values + i, values[at]);
        else store_q4_0(blocks, values + i, values[at]);
        memcpy(&scale, blocks, sizeof scale);
        if (!isfinite(f32_from_f16(scale))) return at;
    }
    return -1;
}

int64_t gguf_store(void *row, enum gguf_type type, const float *values, int64_t count) {
    static const enum dtype dtypes[] = {
        [GGUF_F32] = DTYPE_F32, [GGUF_F16] = DTYPE_F16, [GGUF_BF16] = DTYPE_BF16};
    if (gguf_types[type].block > 1) return store_blocks(row, type, values, count);
    dtype_store(row, dtypes[type], 0, values, (size_t)count);
    for (int64_t i = 0; i < count && type != GGUF_F32; i++) {
        float space, stored = *dtype_widen(&space, row, dtypes[type], (size_t)i, 1);
        if (isfinite(values[i]) && !isfinite(stored)) return i;
    }
    return -1;
}
