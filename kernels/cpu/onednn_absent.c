/* Stands in for onednn.c where oneDNN is not installed (make ONEDNN=0): the same interface, with
 * the plain products of the level. Products in 16 bit are refused, so that matmul.c widens their
 * operands. For machines on which the GPU does the work. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

size_t onednn_own_bytes(const struct onednn *library, int threads) {
    (void)library;
    (void)threads;
    return 0;
}

bool onednn_gains_from_bf16(const struct onednn *library) {
    (void)library;
    return false;
}

static bool is_single(const struct onednn_shape *shape) {
    return shape->in == DTYPE_F32 && shape->out == DTYPE_F32 &&
           (shape->bias < 0 || shape->bias == DTYPE_F32);
}

int onednn_implementations(char names[ONEDNN_IMPLEMENTATIONS_MAX][ONEDNN_NAME_MAX],
                           struct onednn *library, const struct onednn_shape *shape) {
    (void)library;
    snprintf(names[0], ONEDNN_NAME_MAX, "plain");
    return is_single(shape);
}

struct onednn_product *onednn_prepare(struct onednn *library, const struct onednn_shape *shape,
                                      const char *implementation) {
    (void)library;
    if (!is_single(shape) || (implementation && strcmp(implementation, "plain") != 0)) return NULL;
    struct onednn_product *product = malloc(sizeof *product);
    if (product) product->shape = *shape;
    return product;
}

void onednn_discard(struct onednn_product *product) {
    free(product);
}

const char *onednn_implementation(const struct onednn_product *product) {
    (void)product;
    return "plain";
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
