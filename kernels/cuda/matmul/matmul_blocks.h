/* Scales of codes in blocks, in the layouts of cuBLASLt ("Narrow Precision Data Types Usage" in its
 * documentation). */
#pragma once

#include "kernels/cuda/matmul/products.h"

/* Returns the mode in which a GPU of this major compute capability multiplies an operand in blocks,
 * or PRODUCT_UNSCALED if it cannot. The operand is stored as [outer, k], or [k, outer] if
 * transposed. */
enum product_scale cuda_blocks_mode(int major, const struct quantize_format *format,
                                    bool transposed);

/* Writes the scales of an operand with these sizes to out, product_scale_bytes(mode, outer, k). */
void cuda_arrange_block_scales(struct backend *be, void *out, const struct matmul_blocks *blocks,
                               enum product_scale mode, bool transposed, int64_t outer, int64_t k);

/* alpha[0] = a * b, the scales of two tensors; alpha[1] = beta. */
void cuda_multiply_tensor_scales(struct backend *be, float *alpha, const float *a, const float *b,
                                 float beta);
