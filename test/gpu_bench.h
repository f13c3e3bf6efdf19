/* Shared by the parts of gpu_bench: training as a whole, and single kernels. */
#pragma once

#include <stdio.h>

#include "kernels/observer.h"
#include "data/util/statistics.h"

enum bench_precision {
    BENCH_FP32,
    BENCH_TF32,
    BENCH_FP16,
    BENCH_BF16,
    BENCH_FP8,
    BENCH_PRECISIONS
};

struct bench {
    int64_t batch, seq, layers, heads, width, vocabulary;
    double seconds; /* approximate measuring time of each figure */
    bool tiny;      /* rehearsal: small shapes, meaningless figures */
    bool autotune;
    bool one_by_one; /* operations are launched one by one, not as a CUDA graph */
    bool without_wgmma;
    bool steps_only; /* no ceilings and no single kernels */
    bool attention_only;
    bool kernels_only; /* only ceilings and the operations that memory bounds */
    const char *only;  /* optional: only this precision */
    FILE *json;        /* optional */

    double copy_rate;                      /* bytes read and written per second */
    double product_rate[BENCH_PRECISIONS]; /* operations per second; 0: not measured */
    int failures;
};

extern const char *const bench_precision_names[];

/* True if the precision is to be measured. */
bool bench_wants(const struct bench *bench, enum bench_precision precision);

/* Prints one line of the array that bench_json_begin opened; each is complete in itself, so that
 * a script can read it with sed. */
void bench_json_begin(struct bench *bench, const char *name);
void bench_json_line(struct bench *bench, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void bench_json_end(struct bench *bench);

/* Reports a failure with its reason; the benchmark continues. */
void bench_failed(struct bench *bench, const char *what, const char *why);

/* Opens the GPU; returns false after reporting an error. */
bool bench_open(struct bench *bench, struct backend *be, bool tf32);

/* gpu_bench_kernels.c, gpu_bench_attention.c */
void bench_ceilings(struct bench *bench);
void bench_kernels(struct bench *bench);
void bench_attention(struct bench *bench);

/* ---- gpu_bench_products.c */

enum { BENCH_PRODUCTS_MAX = 48, BENCH_FORM_MAX = 64, MATMUL_TENSORS = 8 };

/* A matmul of the step, by shapes, dtypes and what follows it. */
struct bench_product {
    struct matmul_args args; /* its tensors are those below, without data */
    struct tensor tensors[MATMUL_TENSORS];
    int tensor_count;
    double calls, seconds;      /* of one step */
    double fused, apart, plain; /* seconds alone; 0: not measured, or not another form */
};

struct bench_products {
    struct bench_product of[BENCH_PRODUCTS_MAX];
    int count;
};

/* Returns the index of the product with these arguments, which is added if it is new; -1 if there
 * is no place left. */
int bench_products_find(struct bench_products *products, const struct matmul_args *args);

/* Measures each product alone. Plans of matmuls are made anew. */
void bench_products_alone(struct bench *bench, struct backend *be, struct bench_products *products);

/* Prints the table of a step, longest first, and lines of an open array. */
void bench_products_print(struct bench *bench, const struct bench_products *products,
                          enum bench_precision precision);
