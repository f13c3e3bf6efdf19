/* Interface of the library of matrix products: oneDNN, versions 2 and 3 (onednn.c), or plain loops
 * in builds without it (plain_library.c, plain_products.c). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

/* Identity of a product. It is compared byte by byte, so it has no padding. */
struct product_shape {
    int64_t m, n, k;
    int32_t in, out, bias; /* enum dtype; bias -1 for none */
    int32_t transpose_a, transpose_b, accumulate;
};

struct product_library;
struct cpu_product; /* a prepared product */

/* Writes the library's name and version to text, of size bytes. */
void library_describe(char *text, size_t size);

/* Opens the library. keep_to_level: use no instruction beyond the level's, unless
 * ONEDNN_MAX_CPU_ISA in the environment is set. Returns NULL on failure. */
struct cpu_level;
struct product_library *library_open(const struct cpu_level *level, bool keep_to_level);
void library_close(struct product_library *library);

/* Returns the memory that the library allocates itself, besides scratch: generated code, and
 * buffers into which its "gemm" copies operands, several times if malloc fragments. This is an
 * estimate, rounded from the growth of resident memory in training, with versions 2.6.3 and 3.2 and
 * 1 to 8 threads. */
size_t library_own_bytes(const struct product_library *library, int threads);

/* True if products in bf16 are faster than in fp32. */
bool library_has_fast_bf16(const struct product_library *library);

enum { IMPLEMENTATION_NAME_MAX = 40, IMPLEMENTATIONS_MAX = 8 };

/* Writes the names of the library's implementations of a product, the preferred one first, and
 * returns their number. The library's plain loop is listed for fp32 only, if it has no other. */
int library_implementations(char names[IMPLEMENTATIONS_MAX][IMPLEMENTATION_NAME_MAX],
                            struct product_library *library, const struct product_shape *shape);

/* Prepares a product. implementation: one of those names, or NULL for the default.
 * Returns NULL if there is none. */
struct cpu_product *library_prepare(struct product_library *library,
                                    const struct product_shape *shape, const char *implementation);
void library_discard(struct cpu_product *product);

/* Returns the name of the implementation that the library offered to the last library_prepare and
 * then could not create, as when the system refuses memory for generated code; NULL if none. */
const char *library_failed(const struct product_library *library);

const char *library_implementation(const struct cpu_product *product);
size_t library_scratch_bytes(const struct cpu_product *product);

/* out (+)= a b (+ bias); returns false if the library reports a failure. */
bool library_run(struct product_library *library, const struct cpu_product *product, void *out,
                 const void *a, const void *b, const void *bias, void *scratch);
