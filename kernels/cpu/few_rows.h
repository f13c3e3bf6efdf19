/* Products of a few rows with a matrix of weights in 16 bits or as stored, as in generation, where
 * the time goes into reading the weights once. The library's products read them at half to two
 * thirds of the rate of memory, or all weights have to be widened first. In fp32 they are as fast;
 * in fp16 they are used where the processor has no F16C.
 *
 * Each output is a sum of its own in an order that K alone determines, so the number of rows and
 * of threads changes no bits: a text has the same logits alone and beside others. Stored weights
 * are dequantized in panels that stay in a core's cache. */
#pragma once

#include "kernels/backend.h"

/* Largest number of rows. With more, the library's products are at least as fast. */
enum { FEW_ROWS = 8 };

/* True if few_rows_multiply computes this product. */
bool few_rows_fits(const struct matmul_args *args);

/* Returns its scratch in bytes. */
size_t few_rows_scratch(const struct backend *be, const struct matmul_args *args);

/* Epilogues are left to the caller. */
void few_rows_multiply(const struct matmul_args *args, void *scratch);
