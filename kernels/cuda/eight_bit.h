/* Operands of 8 bits on their way to a matrix product. */
#pragma once

#include "kernels/cuda/cuda.h"

/* out [columns, rows] = in [rows, columns] transposed, byte by byte. Rows and columns are multiples
 * of 16, both addresses too. */
void cuda_transpose_8_bit(struct backend *be, const struct tensor *out, const struct tensor *in);

/* out = in, which has 8 bits, in bf16: exact. */
void cuda_widen_8_bit(struct backend *be, const struct tensor *out, const struct tensor *in);
