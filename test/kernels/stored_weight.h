/* Random matrices in a format of kernels/weight_format.h. */
#pragma once

#include <math.h>

#include "test/kernels/check.h"

static inline struct tensor stored_in_backend(struct check *c, const struct tensor *host) {
    struct tensor tensor = *host;
    if (host->data) tensor.data = check_memory(c, CHECK_READ, host->data, tensor_bytes(host));
    return tensor;
}

/* Quantizes random values, in rows of different magnitudes. Returns the matrix in backend memory,
 * and on the host in *host. */
static inline struct quantized_weight random_weight(struct check *c, struct quantized_weight *host,
                                                    enum weight_format format, int64_t rows,
                                                    int64_t columns) {
    struct tensor random = check_normal(c, DTYPE_F32, rows, columns, 0.02);
    const double *values = check_read(c, &random);
    const int64_t count = rows * columns;
    float *all = (float *)(void *)check_doubles(c, count);
    for (int64_t i = 0; i < count; i++) all[i] = (float)ldexp(values[i], (int)(i / columns % 5));
    struct arena arena = {0};
    quantized_weight_take(&arena, format, rows, columns);
    uintptr_t memory = (uintptr_t)check_doubles(c, (int64_t)(arena.used + ARENA_ALIGNMENT) / 8 + 1);
    memory = (memory + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    arena = (struct arena){(char *)memory, 0, arena.used};
    *host = quantized_weight_take(&arena, format, rows, columns);
    quantized_weight_store(host, all, NULL);
    struct quantized_weight weight = *host;
    weight.codes = stored_in_backend(c, &host->codes);
    weight.scales = stored_in_backend(c, &host->scales);
    weight.second_scales = stored_in_backend(c, &host->second_scales);
    weight.mean = stored_in_backend(c, &host->mean);
    return weight;
}
