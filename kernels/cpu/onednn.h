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

/* Memory that the library takes by itself, beside scratch: code that it generates, and buffers into
 * which its "gemm" copies operands, several times over where malloc finds no better place. An
 * estimate, rounded from how the resident memory of trainings grew, with versions 2.6.3 and 3.2 and
 * 1 to 8 threads. */
size_t onednn_own_bytes(const struct onednn *library, int threads);

/* Whether products in bf16 are faster than in fp32. */
bool onednn_gains_from_bf16(const struct onednn *library);

enum { ONEDNN_NAME_MAX = 40, ONEDNN_IMPLEMENTATIONS_MAX = 8 };

/* The names of the library's implementations of a product, its favorite first; returns how many.
 * Its plain loop is among them only for fp32, and where it has nothing better. */
int onednn_implementations(char names[ONEDNN_IMPLEMENTATIONS_MAX][ONEDNN_NAME_MAX],
                           struct onednn *library, const struct onednn_shape *shape);

/* implementation: one of those names, or NULL for the one that is best by a rule of ours. NULL if
 * there is none. */
struct onednn_product *onednn_prepare(struct onednn *library, const struct onednn_shape *shape,
                                      const char *implementation);
void onednn_discard(struct onednn_product *product);

const char *onednn_implementation(const struct onednn_product *product);
size_t onednn_scratch_bytes(const struct onednn_product *product);

/* out (+)= a b (+ bias); returns false if the library reports a failure. */
bool onednn_run(struct onednn *library, const struct onednn_product *product, void *out,
                const void *a, const void *b, const void *bias, void *scratch);

#endif
