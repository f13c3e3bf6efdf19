/* Matrix products on operands widened to fp32 (8-bit operands to bf16 if that is faster), where the
 * library has no faster kernel for their dtypes. fp16, bf16 without fast instructions, and mixed
 * dtypes all work, at nearly fp32 speed; only the rounding of stored values differs.
 *
 * A product is cut into panels along its longest dimension, so that the widened copies stay small:
 *
 *     out [M, N] = a [M, K] b [K, N]      panels of M: rows of a and out
 *                                         panels of N: columns of b and out
 *                                         panels of K: added up in fp32, rounded once */
#pragma once

#include "kernels/cpu/products.h"

/* Returns the shape of the product in args, with the dtypes of its operands. */
struct product_shape product_shape_of(const struct matmul_args *args);

/* Returns the scratch that it needs. While planning, autotune may time the products of its
 * panels. */
size_t widened_scratch(struct backend *be, const struct matmul_args *args, bool planning);

/* Returns false if the library failed. Epilogues and column sums are left to the caller. */
bool widened_multiply(struct backend *be, const struct matmul_args *args, void *scratch);
