/* Sums of 8-bit products as tensor cores make them, emulated bit for bit to study what they cost.
 *
 * A step adds a block of products to the sum so far. All are aligned to the largest exponent among
 * them and truncated to 13 bits after it; their sum is truncated to 13 bits after its own exponent.
 * Exponents of products are those of the factors, at least that of the format's smallest normal
 * value. Without fast accumulation a new sum begins after each 128 products, and these are added in
 * fp32. Sources: Fasi, Higham, Mikaitis, Pranesh 2021; Khattak, Mikaitis 2026 (arXiv 2512.07004);
 * how cuBLAS 12.8 uses them on an H100 PCIe and an RTX 4060: mmaemu 0.1.0, without split-K. */
#pragma once

#include "kernels/backend.h"

/* True if the sums of this product are emulated. */
bool tensor_core_sums_wanted(const struct matmul_args *args);

/* Returns the bytes of scratch. */
size_t tensor_core_sums_scratch(const struct matmul_args *args);

/* Computes the product and finishes its rows: scales, bias, accumulation. Returns false, with out
 * unchanged, if an operand has a code that is not finite. */
bool tensor_core_sums_multiply(const struct matmul_args *args, void *scratch);
