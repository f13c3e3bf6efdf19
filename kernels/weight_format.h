/* Formats of weights that are stored in fewer bits, as data, and a matrix stored in one.
 *
 * The elements of a matrix, in row-major order, are cut into blocks of `block`; the elements of a
 * block share a scale. The last block may be shorter.
 *
 *     element i = value of code i * scale of block i / block
 *
 * A scale is stored in fp32, or as a code with a second level of fp32 scales:
 *
 *     scale b = value of code b * second scale of block b / second_block + mean
 *
 * Each operation is rounded to fp32. NF4 is that of bitsandbytes with compress_statistics: the same
 * codes and the same values for the same mean, which is rounded once here. FP8 has a scale for each
 * row, like an operand of kernels/quantize_format.h, and FP8_BLOCK one for 128 elements of it, which
 * can hold the scales of models in fine-grained FP8 (128 x 128). */
#pragma once

#include <stdint.h>

#include "kernels/arena.h"
#include "kernels/tensor.h"

/* X(NAME, dtype of elements, block (0: a row), dtype of scales, second_block (0: none)) */
#define WEIGHT_FORMATS(X)          \
    X(NF4, NF4, 64, DYNAMIC8, 256) \
    X(FP8, E4M3, 0, F32, 0)        \
    X(FP8_BLOCK, E4M3, 128, F32, 0)

enum weight_format {
    WEIGHT_PLAIN, /* not quantized */
#define X(NAME, ...) WEIGHT_##NAME,
    WEIGHT_FORMATS(X)
#undef X
};

/* A matrix in such a format. Codes of less than 8 bits fill bytes from the high bits down. */
struct quantized_weight {
    int64_t count, block, second_block; /* elements; second_block 0: scales are fp32 */
    struct tensor codes;                /* [count, rounded up to whole bytes] */
    struct tensor scales;               /* [blocks] */
    struct tensor second_scales;        /* [blocks of scales] fp32, if there is a second level */
    struct tensor mean;                 /* [1] fp32, if there is a second level */
};

/* Matrices of one format whose rows follow each other in an operand. */
enum { STORED_MAX = 3 };
struct stored_matrices {
    int count;
    const struct quantized_weight *weights[STORED_MAX];
};

/* Returns a matrix of the format, taken from an arena. */
struct quantized_weight quantized_weight_take(struct arena *arena, enum weight_format format,
                                              int64_t rows, int64_t columns);

/* Returns its size without the arena's alignment. */
size_t quantized_weight_bytes(const struct quantized_weight *weight);

/* Quantizes fp32 values. All tensors are in host memory. Uses all threads. scales: optional, one
 * level of them, of each block; values that are codes times these get those codes again. */
void quantized_weight_store(const struct quantized_weight *weight, const float *values,
                            const float *scales);

/* Computes elements first .. first + count - 1 as fp32 from tensors in host memory. */
void quantized_weight_load(const struct quantized_weight *weight, float *values, int64_t first,
                           int64_t count);
