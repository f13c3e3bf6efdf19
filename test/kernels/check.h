/* The bench on which kernels are checked, in the manner of checkasm: every operation is run on
 * seeded random inputs on the device under test (test/device.h), and compared with a reference in
 * fp64.
 *
 *     static void body(struct check *c, const void *given) {
 *         struct tensor in = check_normal(c, DTYPE_BF16, rows, columns, 1.0);
 *         struct tensor out = check_output(c, DTYPE_F32, rows, columns);
 *         CHECK_OP(c, gelu_forward, .out = &out, .in = &in);
 *         if (!c->verify) return;
 *         ... fill an array of expected values from check_read(c, &in) ...
 *         check_close(c, "gelu_forward", &out, expected, magnitudes);
 *     }
 *     Test(gelu, forward) { check_everywhere(body, &(const struct shape){5, 77}); }
 *
 * A body runs several times with different thread counts; all runs must leave the same bits in
 * all outputs (but see check_products). Only the first run has `verify` set, so that references are
 * computed once. Memory of the backend is surrounded by guards; outputs and guards hold a pattern
 * that is a NaN in all dtypes. CHECK_OP makes sure that planning touches nothing, that inputs and
 * guards keep their bits, and that the workspace asked for while planning is enough (and not taken
 * for zeros). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

struct check_block;
struct check_host;

struct check {
    struct backend be;
    bool verify;                /* compare with references in this run */
    uint64_t stream;            /* counts random inputs, so that each has its own */
    uint64_t digest;            /* of all outputs so far */
    struct check_block *blocks; /* backend memory handed out */
    struct check_host *host;    /* host memory handed out */
};

/* Runs body with 1, 2, 2 and 3 threads, and compares the bits. On an emulated GPU the number of
 * threads stands for the order in which the GPU's threads and blocks run. */
void check_everywhere(void (*body)(struct check *c, const void *given), const void *given);

/* The same, on an emulated GPU once for each that has kernels of its own: sm_80, sm_90. */
void check_on_each_gpu(void (*body)(struct check *c, const void *given), const void *given);

/* The same for matrix products, whose sums a library may split among threads as it likes: the bits
 * must be the same each time with 1, with 2, and with 3 threads, and each is compared with the
 * reference. */
void check_products(void (*body)(struct check *c, const void *given), const void *given);

enum check_use {
    CHECK_READ, /* must keep its bits */
    CHECK_WRITE /* belongs to the result */
};

/* Guarded backend memory with a copy of host's bytes, or poisoned if host is NULL. */
void *check_memory(struct check *c, enum check_use use, const void *host, size_t bytes);

/* Tensors of rank 2, or rank 1 if columns is 0. */
struct tensor check_tensor(struct check *c, enum check_use use, enum dtype dtype, int64_t rows,
                           int64_t columns, const double *values);
struct tensor check_normal(struct check *c, enum dtype dtype, int64_t rows, int64_t columns,
                           double scale);
struct tensor check_output(struct check *c, enum dtype dtype, int64_t rows, int64_t columns);
/* Random, and added to by the operation. */
struct tensor check_sum(struct check *c, enum dtype dtype, int64_t rows, int64_t columns);
/* As check_normal or, for CHECK_WRITE, check_sum, but the first element stands one element behind
 * where a vector could be read. */
struct tensor check_odd_place(struct check *c, enum check_use use, enum dtype dtype, int64_t rows,
                              int64_t columns);

/* Random integers in 0..limit-1; *host becomes the same numbers on the host. */
const int32_t *check_tokens(struct check *c, int64_t count, int32_t limit, const int32_t **host);

/* Zeros on the host that live as long as the run. */
double *check_doubles(struct check *c, int64_t count);

/* Returns the tensor's current values on the host, exactly. */
double *check_read(struct check *c, const struct tensor *tensor);

/* For an operation to join, with what was found of something else; and that it has been joined by
 * what a tensor holds now. */
struct amax *check_amax(struct check *c, float largest, bool not_finite);
void check_joined(struct check *c, const struct amax *magnitude, float before, bool bad_before,
                  const struct tensor *tensor);

/* Column sums, before which there were `before`, of what `of` holds now. */
void check_column_sums(struct check *c, const struct tensor *sums, const double *before,
                       const struct tensor *of);

/* The same tensor as rank 3. */
struct tensor check_rank3(struct tensor tensor, int64_t a, int64_t b, int64_t columns);

#define CHECK_OP(c, name, ...)           \
    do {                                 \
        check_plan_begin(c);             \
        OP(&(c)->be, name, __VA_ARGS__); \
        check_plan_end(c, #name);        \
        OP(&(c)->be, name, __VA_ARGS__); \
        check_finished(c, #name);        \
    } while (0)

void check_plan_begin(struct check *c);
void check_plan_end(struct check *c, const char *operation);
void check_finished(struct check *c, const char *operation);

/* Compares each element: it may differ from expected by
 *     roundoff(dtype) * roundings * |expected| + arithmetic * 2^-24 * magnitude
 * and half the dtype's smallest subnormal, with the numbers of `kind` in tolerances.c; results that
 * tiny that exponentials underflow on the way are let through. With CHECK_VERBOSE in the
 * environment, prints how much of what is allowed was used. The
 * magnitude of an element is the sum of the absolute values of what was added up for it; NULL: the
 * largest |expected| of the tensor. Fails the test with the worst element. */
void check_close(struct check *c, const char *kind, const struct tensor *got,
                 const double *expected, const double *magnitude);

/* The same for values that are exact in the tensor's dtype. */
void check_equal(struct check *c, const char *what, const struct tensor *got,
                 const double *expected);

/* The nearest value of dtype, ties to even: computed without the code under test. */
double check_round(double value, enum dtype dtype);

/* A half of the distance between 1 and the next value. */
double check_roundoff(enum dtype dtype);

/* The derivative of f at x by central differences of order 4. f is smooth and computed in fp64, so
 * that this is good to about 1e-11 of its values: exact, seen from fp32. `x` points into `state`,
 * which f reads; it is put back. */
double check_derivative(double (*f)(const void *state), const void *state, double *x);

/* tolerances.c */
struct tolerance {
    const char *kind;
    double arithmetic[3]; /* by enum dtype of the output, in 2^-24 of the magnitude */
    double roundings;     /* to the dtype of the output, the final one included */
};
const struct tolerance *tolerance_of(const char *kind);
