/* The matrix products that were prepared, one per distinct shape and dtypes. */
#ifndef KERNELS_CPU_PRODUCTS_H
#define KERNELS_CPU_PRODUCTS_H

#include "kernels/cpu/onednn.h"

struct cpu_products;

/* Arguments as of onednn_open. On failure returns NULL with a message of at most BACKEND_ERROR_MAX
 * bytes. */
struct cpu_products *cpu_products_open(const struct cpu_level *level, bool keep_to_level,
                                       char *error);
void cpu_products_close(struct cpu_products *products);

void cpu_products_describe(char *text, size_t size); /* the library behind them */
bool cpu_products_native_bf16(const struct cpu_products *products);

/* The product of this shape, prepared when it is asked for first. NULL if the library has no
 * implementation of its own that is faster than fp32 products of widened operands. */
struct onednn_product *cpu_products_find(struct cpu_products *products, struct onednn_shape shape);

bool cpu_products_run(struct cpu_products *products, const struct onednn_product *product,
                      void *out, const void *a, const void *b, const void *bias, void *scratch);

#endif
