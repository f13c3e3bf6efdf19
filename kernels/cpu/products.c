#include "kernels/cpu/products.h"

#include <stdio.h>
#include <stdlib.h>

#include <stb/stb_ds.h>

#include "kernels/backend.h"

struct product_entry {
    struct onednn_shape key;
    struct onednn_product *value; /* NULL: widen */
};

struct cpu_products {
    struct onednn *library;
    struct product_entry *prepared; /* stb_ds map */
    bool native_bf16;
};

struct onednn_product *cpu_products_find(struct cpu_products *products, struct onednn_shape shape) {
    ptrdiff_t at = hmgeti(products->prepared, shape);
    if (at >= 0) return products->prepared[at].value;
    /* Without instructions for bf16 the library emulates it with AVX-512, at a third of the speed
     * of fp32. */
    bool slow = shape.in == DTYPE_BF16 && !onednn_has_bf16(products->library);
    struct onednn_product *product = slow ? NULL : onednn_prepare(products->library, &shape);
    hmput(products->prepared, shape, product);
    return product;
}

struct cpu_products *cpu_products_open(const struct cpu_level *level, bool keep_to_level,
                                       char *error) {
    struct cpu_products *products = calloc(1, sizeof *products);
    if (products) products->library = onednn_open(level, keep_to_level);
    if (!products || !products->library) {
        snprintf(error, BACKEND_ERROR_MAX, "oneDNN cannot be started on this processor");
        free(products);
        return NULL;
    }
    struct onednn_shape probe = {64, 64, 64, DTYPE_BF16, DTYPE_BF16, -1, 0, 0, 0};
    products->native_bf16 = cpu_products_find(products, probe) != NULL;
    return products;
}

void cpu_products_close(struct cpu_products *products) {
    for (ptrdiff_t i = 0; i < hmlen(products->prepared); i++)
        onednn_discard(products->prepared[i].value);
    hmfree(products->prepared);
    onednn_close(products->library);
    free(products);
}

void cpu_products_describe(char *text, size_t size) {
    onednn_describe(text, size);
}

bool cpu_products_native_bf16(const struct cpu_products *products) {
    return products->native_bf16;
}

bool cpu_products_run(struct cpu_products *products, const struct onednn_product *product,
                      void *out, const void *a, const void *b, const void *bias, void *scratch) {
    return onednn_run(products->library, product, out, a, b, bias, scratch);
}
