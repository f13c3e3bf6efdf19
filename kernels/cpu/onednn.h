/* One prepared matrix product of oneDNN, the same under its versions 2 and 3. */
#ifndef KERNELS_CPU_ONEDNN_H
#define KERNELS_CPU_ONEDNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

/* What makes two products the same. No padding holes: it is compared byte by byte. */
struct onednn_shape {
    int64_t m, n, k;
    int32_t in, out, bias; /* enum dtype; bias -1 for none */
    int32_t transpose_a, transpose_b, accumulate;
};

struct onednn_product; /* descriptor, generated code, and handles for its operands */
struct onednn;         /* the engine and its stream */

/* The library's name and version, into text of size bytes. */
void onednn_describe(char *text, size_t size);

/* keep_to_level: use no instruction beyond the level's, unless ONEDNN_MAX_CPU_ISA in the
 * environment says otherwise. NULL if the library refuses. */
struct cpu_level;
struct onednn *onednn_open(const struct cpu_level *level, bool keep_to_level);
void onednn_close(struct onednn *library);

/* Whether there are instructions for products in bf16. */
bool onednn_has_bf16(const struct onednn *library);

/* NULL if this library on this processor has no implementation of its own for the shape. */
struct onednn_product *onednn_prepare(struct onednn *library, const struct onednn_shape *shape);
void onednn_discard(struct onednn_product *product);

size_t onednn_scratch_bytes(const struct onednn_product *product);

/* out (+)= a b (+ bias); returns false if the library reports a failure. */
bool onednn_run(struct onednn *library, const struct onednn_product *product, void *out,
                const void *a, const void *b, const void *bias, void *scratch);

#endif
