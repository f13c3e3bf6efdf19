/* Matmuls of operands of 8 or 4 bits: which of them the library runs, and conversions before it. */
#pragma once

#include "kernels/cuda/matmul/products.h"

/* True if an operand has a scale for each row or column. */
static inline bool cuda_scales_vectors(const struct matmul_args *args) {
    return tensor_count(args->a_scales) > 1 || tensor_count(args->b_scales) > 1;
}

/* A matmul of codes as the library runs it. */
struct codes_product {
    bool possible;    /* the GPU multiplies these formats */
    bool suits;       /* and M and N are multiples of unit, K of k_unit */
    int unit, k_unit; /* 16 bytes, and for K whole blocks */
    enum product_scale a_scale, b_scale;
};

/* possible is false if the operands are not codes. */
struct codes_product cuda_codes_product(const struct cuda_products *products,
                                        const struct matmul_args *args);

/* out [columns, rows] = in [rows, columns] transposed. Rows, the bytes of a row, and both addresses
 * are multiples of 16. */
void cuda_transpose_codes(struct backend *be, const struct tensor *out, const struct tensor *in);

/* out = in, from 8 bits to bf16, which is exact. */
void cuda_widen_codes(struct backend *be, const struct tensor *out, const struct tensor *in);
