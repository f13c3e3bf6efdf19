/* Conversions of 8-bit operands before a matrix product. */
#pragma once

#include "kernels/cuda/cuda.h"

/* out [columns, rows] = in [rows, columns] transposed, byte by byte. Rows, columns and both
 * addresses are multiples of 16. */
void cuda_transpose_codes(struct backend *be, const struct tensor *out, const struct tensor *in);

/* out = in, from 8 bits to bf16, which is exact. */
void cuda_widen_codes(struct backend *be, const struct tensor *out, const struct tensor *in);
