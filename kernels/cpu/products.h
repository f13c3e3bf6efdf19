/* The matrix products that were prepared, one per distinct shape and dtypes. */
#pragma once

#include "data/util/error.h"
#include "kernels/backend.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/product_library.h"

struct cpu_products;

/* Fills in what the library says to the device's description, of which threads and the words are
 * there already. keep_to_level: see library_open. On failure returns NULL with a message. */
struct cpu_products *cpu_products_open(struct backend_description *device,
                                       const struct cpu_level *level, bool keep_to_level,
                                       const struct backend_options *options, struct error *error);
void cpu_products_close(struct cpu_products *products);

/* The product of this shape, prepared when it is asked for first; while planning, autotune times
 * the library's implementations then. NULL if the library has none that is faster than fp32
 * products of widened operands. */
struct cpu_product *cpu_products_find(struct cpu_products *products, struct product_shape shape,
                                      bool planning);

bool cpu_products_run(struct cpu_products *products, const struct cpu_product *product, void *out,
                      const void *a, const void *b, const void *bias, void *scratch);

/* Writes the algorithms that autotune has chosen, for options->choices of a later run. Returns -1
 * with a message. */
int cpu_products_write(const struct cpu_products *products, const char *path, struct error *error);
