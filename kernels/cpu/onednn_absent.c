/* Stands in for onednn.c where oneDNN is not installed (make ONEDNN=0): the same interface, with
 * the plain products of the level. Products in 16 bit are refused, so that matmul.c widens their
 * operands. For machines on which the GPU does the work. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/level.h"
#include "kernels/cpu/onednn.h"

struct onednn_product {
    struct onednn_shape shape;
};

struct onednn {
    const struct cpu_level *level;
};

void onednn_describe(char *text, size_t size) {
    snprintf(text, size, "plain products");
}

struct onednn *onednn_open(const struct cpu_level *level, bool keep_to_level) {
    (void)keep_to_level;
    struct onednn *library = malloc(sizeof *library);
    if (library) library->level = level;
    return library;
}

void onednn_close(struct onednn *library) {
    free(library);
}

bool onednn_has_bf16(const struct onednn *library) {
    (void)library;
    return false;
}

struct onednn_product *onednn_prepare(struct onednn *library, const struct onednn_shape *shape) {
    (void)library;
    bool single = shape->in == DTYPE_F32 && shape->out == DTYPE_F32 &&
                  (shape->bias < 0 || shape->bias == DTYPE_F32);
    if (!single) return NULL;
    struct onednn_product *product = malloc(sizeof *product);
    if (product) product->shape = *shape;
    return product;
}

void onednn_discard(struct onednn_product *product) {
    free(product);
}

size_t onednn_scratch_bytes(const struct onednn_product *product) {
    (void)product;
    return 0;
}

bool onednn_run(struct onednn *library, const struct onednn_product *product, void *out,
                const void *a, const void *b, const void *bias, void *scratch) {
    (void)scratch;
    library->level->operations->plain_product(&product->shape, out, a, b, bias);
    return true;
}
