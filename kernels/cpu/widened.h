/* Matrix products on operands widened to fp32 (of 8 bits: to bf16 where that is faster), where the
 * library has no faster kernel for their dtypes: fp16, bf16 without fast instructions, and unlike
 * dtypes all work, at nearly fp32 speed; only the rounding of what is stored differs.
 *
 * A product is cut into panels along its longest dimension, so that the widened copies stay small:
 *
 *     out [M, N] = a [M, K] b [K, N]      panels of M: rows of a and out
 *                                         panels of N: columns of b and out
 *                                         panels of K: added up in fp32, rounded once */
#pragma once

#include "kernels/cpu/products.h"

/* The product that args ask for, its operands as they are. */
struct product_shape product_shape_of(const struct matmul_args *args);

/* Scratch that it needs. While planning, autotune may time the products of its panels. */
size_t widened_scratch(struct backend *be, const struct matmul_args *args, bool planning);

/* Returns whether the library could do all of it. Epilogues and column sums are the caller's. */
bool widened_multiply(struct backend *be, const struct matmul_args *args, void *scratch);
