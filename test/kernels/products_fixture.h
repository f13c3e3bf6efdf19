/* Matmuls of a backend on the emulated GPU and its fake cuBLASLt, planned and run. Only emulated
 * builds include it. */
#pragma once

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "data/util/random.h"
#include "kernels/backend.h"
#include "kernels/open/backend_open.h"
#include "test/cuda_emulator/fake_cublaslt.h"
#include "test/scratch.h"

enum { M = 24, N = 40, K = 72, LONG = 600 };

/* A backend with operands for out [M, N] = a [M, K] b [K, N]. */
struct bench {
    struct backend be;
    struct tensor a, b, out, long_a, long_b;
};

static inline struct tensor make_tensor(struct bench *bench, int64_t rows, int64_t columns) {
    struct tensor tensor = {NULL, DTYPE_F32, 2, {rows, columns}};
    float *values = malloc(tensor_bytes(&tensor));
    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = (float)random_normal(20, (uint64_t)rows, (uint64_t)i);
    tensor.data = backend_allocate(&bench->be, tensor_bytes(&tensor));
    backend_upload(&bench->be, tensor.data, values, tensor_bytes(&tensor));
    free(values);
    return tensor;
}

static inline int try_open(struct bench *bench, const struct backend_options *options,
                           struct error *message) {
    if (backend_open(&bench->be, options, message)) return -1;
    bench->a = make_tensor(bench, M, K);
    bench->b = make_tensor(bench, K, N);
    bench->out = make_tensor(bench, M, N);
    bench->long_a = make_tensor(bench, M, LONG);
    bench->long_b = make_tensor(bench, LONG, N);
    return 0;
}

static inline void open_bench(struct bench *bench, const struct backend_options *options) {
    struct error message;
    cr_assert_eq(try_open(bench, options, &message), 0, "%s", message.text);
}

static inline void close_bench(struct bench *bench) {
    struct tensor *all[] = {&bench->a, &bench->b, &bench->out, &bench->long_a, &bench->long_b};
    for (int i = 0; i < 5; i++) backend_release(&bench->be, all[i]->data);
    backend_close(&bench->be);
}

static inline void run_products(struct bench *bench) {
    OP(&bench->be, matmul, .out = &bench->out, .a = &bench->a, .b = &bench->b);
    OP(&bench->be, matmul, .out = &bench->out, .a = &bench->long_a, .b = &bench->long_b,
       .accumulate = true);
}

static inline void plan(struct bench *bench) {
    struct error message;
    backend_plan_begin(&bench->be);
    run_products(bench);
    cr_assert_eq(backend_plan_end(&bench->be, &message), 0, "%s", message.text);
}

static inline uint64_t digest(struct bench *bench) {
    static float values[M * N];
    uint64_t sum = 0xcbf29ce484222325;
    run_products(bench);
    cr_assert_str_empty(bench->be.failure.text);
    backend_download(&bench->be, values, bench->out.data, sizeof values);
    for (size_t i = 0; i < sizeof values; i++)
        sum = (sum ^ ((unsigned char *)values)[i]) * 0x100000001b3;
    return sum;
}

static const struct backend_options plain = {.device = DEVICE_CUDA};

static inline struct backend_options tuned(const char *choices) {
    return (struct backend_options){
        .device = DEVICE_CUDA, .autotune = AUTOTUNE_ON, .algorithms = choices};
}

/* Reads a file, changes it by `edit`, writes it back. */
static inline void edit_file(const char *path, const char *from, const char *to) {
    char text[4096], changed[4096];
    FILE *file = fopen(path, "r");
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    char *at = strstr(text, from);
    cr_assert(at, "no \"%s\" in the file:\n%s", from, text);
    int length = snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to,
                          at + strlen(from));
    file = fopen(path, "w");
    fwrite(changed, 1, (size_t)length, file);
    fclose(file);
}
