/* Formats of quantized matrices, as data. The operation quantize and the matmuls that read its
 * results see only the tensors of values and scales that a format describes.
 *
 * A matrix [rows, columns] is cut into blocks. The elements of a block share a scale, so the scales
 * are a tensor [rows / block rows, columns / block columns]:
 *
 *                     block      scales of [M, K]
 *     per tensor      0 x 0      [1, 1]             0: the whole extent
 *     per row         1 x 0      [M, 1]
 *     per column      0 x 1      [1, K]
 *     1 x 32          1 x 32     [M, K / 32]
 *     16 x 16         16 x 16    [M / 16, K / 16] */
#pragma once

#include <stdbool.h>

#include "kernels/tensor.h"

/* Rounding of the factor that values are multiplied by, 1 / scale. */
enum scale_rounding {
    SCALE_NEAREST,
    SCALE_POWER_OF_TWO, /* down to a power of two, so that values do not saturate */
    SCALE_OF_EXPONENT   /* a power of two by the exponent of the amax alone: values may saturate */
};

struct quantize_format {
    enum dtype element;    /* a quantized dtype, or DTYPE_E2M1 */
    int64_t rows, columns; /* a block's; 0: the whole extent */
    enum dtype scale;      /* dtype of the scales; E8M0 and E4M3: see kernels/block_scale.h */
    enum scale_rounding rounding;
    bool stochastic; /* elements are rounded stochastically, not to the nearest; in blocks only */
};

/* Returns the format of the transposed matrix. */
struct quantize_format quantize_format_transposed(const struct quantize_format *format);

bool quantize_format_equal(const struct quantize_format *a, const struct quantize_format *b);

/* True if scales are those of kernels/block_scale.h. A matmul reads codes and scales where the
 * device multiplies them (backend_multiplies_blocks), else values in bf16, which represents them
 * exactly. */
bool quantize_format_in_blocks(const struct quantize_format *format);

/* True if scales are in units of an fp32 scale of the whole tensor. */
bool quantize_format_has_tensor_scale(const struct quantize_format *format);

/* True if all elements share one scale. */
bool quantize_format_per_tensor(const struct quantize_format *format);

/* Returns the scales of a matrix of this size, without data. If matmuls read them, the block's
 * sizes must divide the matrix's; else the last blocks may be smaller. */
struct tensor quantize_format_scales(const struct quantize_format *format, int64_t rows,
                                     int64_t columns);
