/* The prepared matrix products, one per distinct shape and dtypes. */
#pragma once

#include "data/util/error.h"
#include "kernels/backend.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/product_library.h"

struct cpu_products;

/* Opens the library and sets be->state, be->algorithms, and the library's properties in the
 * device's description, in which threads and description are already set. keep_to_level: see
 * library_open. Returns -1 with a message. */
int cpu_products_open(struct backend *be, const struct cpu_level *level, bool keep_to_level,
                      const struct backend_options *options, struct error *error);
void cpu_products_close(struct cpu_products *products);

/* Returns the product of this shape, prepared at its first use; while planning, autotune then times
 * the library's implementations or, if only sizes are needed, takes the one with the most scratch
 * memory. Returns NULL if the library has none that is faster than fp32 products of widened
 * operands. */
struct cpu_product *cpu_products_find(struct backend *be, struct product_shape shape,
                                      bool planning);

/* See backend_fallback: implementations that the library offered and could not create. Matmuls that
 * it does not support run widened and are not listed. */
const char *cpu_products_fallback(const struct cpu_products *products, int index);

bool cpu_products_run(struct cpu_products *products, const struct cpu_product *product, void *out,
                      const void *a, const void *b, const void *bias, void *scratch);
