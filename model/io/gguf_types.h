/* Types of tensors in GGUF files, and rounding to them. Sources: ggml_type of ggml-org/ggml and the
 * reference quantizers of PyPI's gguf, with which all bits agree.
 *
 * F32, F16 and BF16 store each value. The others store blocks of 32 values of a row: a scale in
 * fp16, then integers.
 *   Q8_0  scale amax / 127; 32 int8
 *   Q4_0  scale v / -8, with v the first value of the largest magnitude; 16 bytes, each with value
 *         i in its low half and value i + 16 in its high half, both + 8 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* X(NAME, name of --type, number in the file, general.file_type of a file of this type, values of a
 * block, bytes of a block) */
#define GGUF_TYPES(X)             \
    X(F32, "f32", 0, 0, 1, 4)     \
    X(F16, "f16", 1, 1, 1, 2)     \
    X(BF16, "bf16", 30, 32, 1, 2) \
    X(Q8_0, "q8_0", 8, 7, 32, 34) \
    X(Q4_0, "q4_0", 2, 2, 32, 18)

enum gguf_type {
#define X(NAME, ...) GGUF_##NAME,
    GGUF_TYPES(X)
#undef X
        GGUF_TYPE_COUNT
};

struct gguf_type_info {
    const char *name;
    uint32_t number, file_type;
    int64_t block; /* values; a row consists of whole blocks */
    size_t block_bytes;
};

extern const struct gguf_type_info gguf_types[GGUF_TYPE_COUNT];

/* Stores a row of `count` values, whole blocks. Returns -1, or the index of a value that the type
 * cannot represent: a finite one too large for F16 or BF16; for blocks one that is not finite, or
 * that is too large for the scale. */
int64_t gguf_store(void *row, enum gguf_type type, const float *values, int64_t count);
