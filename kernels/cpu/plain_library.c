/* Product library for builds without oneDNN (make ONEDNN=0), for machines that train on a GPU: the
 * plain loops of the level. It has none for 16 bit, so matmul.c widens those operands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/level.h"
#include "kernels/cpu/product_library.h"

struct cpu_product {
    struct product_shape shape;
};

struct product_library {
    const struct cpu_level *level;
};

void library_describe(char *text, size_t size) {
    snprintf(text, size, "plain products");
}

struct product_library *library_open(const struct cpu_level *level, bool keep_to_level) {
    (void)keep_to_level;
    struct product_library *library = malloc(sizeof *library);
    if (library) library->level = level;
    return library;
}

void library_close(struct product_library *library) {
    free(library);
}

size_t library_own_bytes(const struct product_library *library, int threads) {
    (void)library;
    (void)threads;
    return 0;
}

bool library_has_fast_bf16(const struct product_library *library) {
    (void)library;
    return false;
}

static bool is_fp32(const struct product_shape *shape) {
    return shape->in == DTYPE_F32 && shape->out == DTYPE_F32 &&
           (shape->bias < 0 || shape->bias == DTYPE_F32);
}

int library_implementations(char names[IMPLEMENTATIONS_MAX][IMPLEMENTATION_NAME_MAX],
                            struct product_library *library, const struct product_shape *shape) {
    (void)library;
    snprintf(names[0], IMPLEMENTATION_NAME_MAX, "plain");
    return is_fp32(shape);
}

struct cpu_product *library_prepare(struct product_library *library,
                                    const struct product_shape *shape, const char *implementation) {
    (void)library;
    if (!is_fp32(shape) || (implementation && strcmp(implementation, "plain") != 0)) return NULL;
    struct cpu_product *product = malloc(sizeof *product);
    if (product) product->shape = *shape;
    return product;
}

void library_discard(struct cpu_product *product) {
    free(product);
}

const char *library_failed(const struct product_library *library) {
    (void)library;
    return NULL;
}

const char *library_implementation(const struct cpu_product *product) {
    (void)product;
    return "plain";
}

size_t library_scratch_bytes(const struct cpu_product *product) {
    (void)product;
    return 0;
}

bool library_run(struct product_library *library, const struct cpu_product *product, void *out,
                 const void *a, const void *b, const void *bias, void *scratch) {
    (void)scratch;
    library->level->operations->plain_product(&product->shape, out, a, b, bias);
    return true;
}
