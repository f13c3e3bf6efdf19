/* Scales, bias and rounding of a matmul's sums. */
#pragma once

#include "kernels/cuda/cuda.h"

/* Scales of operands that the library has not applied; a is NULL if there are none. */
struct sum_scales {
    const float *a, *b;
    bool per_row, per_column; /* a has one for each row, b one for each column; else one */
};

/* out [rows, columns] (+)= product * scales + bias, rounded once to out's dtype. product is fp32
 * and may be out itself; bias [columns] may be NULL. */
void cuda_matmul_store(struct backend *be, const struct tensor *out, const float *product,
                       struct sum_scales scales, const struct tensor *bias, bool accumulate);
