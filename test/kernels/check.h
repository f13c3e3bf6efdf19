/* Test bench for kernels, in the manner of checkasm. Every operation runs on seeded random inputs
 * on the device under test (test/device.h), and is compared with a reference in fp64.
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
 * A body runs several times with different thread counts; all runs must give the same bits in
 * all outputs (except in check_products). Only the first run has `verify` set, so that references
 * are computed once. Backend memory is surrounded by guards; outputs and guards hold a pattern that
 * is a NaN in all dtypes. CHECK_OP checks that planning touches nothing, that inputs and guards
 * keep their bits, and that the planned workspace is enough (and not assumed to be zero). */
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
    bool tf32;                  /* products of fp32 round operands to TF32, as random inputs are */
    uint64_t stream;            /* counts random inputs, so that each has its own */
    uint64_t digest;            /* digest of all outputs so far */
    struct check_block *blocks; /* backend memory handed out */
    struct check_host *host;    /* host memory handed out */
};

/* Runs body with 1, 2, 2 and 3 threads, and compares the bits. On an emulated GPU the number of
 * threads selects the order of the GPU's threads and blocks. */
void check_everywhere(void (*body)(struct check *c, const void *given), const void *given);

/* Like check_everywhere; on an emulated GPU, once for each architecture with kernels of its own:
 * sm_80 and sm_90. */
void check_on_each_gpu(void (*body)(struct check *c, const void *given), const void *given);

/* Like check_on_each_gpu, with the option tf32. */
void check_tf32(void (*body)(struct check *c, const void *given), const void *given);

/* Like check_everywhere, on an emulated GPU of compute capability sm; returns the fewest blocks of
 * a kernel that its multiprocessors hold. Elsewhere does nothing and returns `held`. */
int check_on_gpu(int sm, int held, void (*body)(struct check *c, const void *given),
                 const void *given);
int check_tf32_on_gpu(int sm, int held, void (*body)(struct check *c, const void *given),
                      const void *given);

/* Like check_everywhere for matmuls, whose sums a library may split among threads. The bits must
 * repeat with 1, with 2 and with 3 threads; each result is compared with the reference. */
void check_products(void (*body)(struct check *c, const void *given), const void *given);

enum check_use {
    CHECK_READ, /* input: must keep its bits */
    CHECK_WRITE /* output: belongs to the result */
};

/* Guarded backend memory with a copy of host's bytes, or poisoned if host is NULL. */
void *check_memory(struct check *c, enum check_use use, const void *host, size_t bytes);

/* Tensors of rank 2, or rank 1 if columns is 0. */
struct tensor check_tensor(struct check *c, enum check_use use, enum dtype dtype, int64_t rows,
                           int64_t columns, const double *values);
struct tensor check_normal(struct check *c, enum dtype dtype, int64_t rows, int64_t columns,
                           double scale);
struct tensor check_output(struct check *c, enum dtype dtype, int64_t rows, int64_t columns);
/* Random values that the operation adds to. */
struct tensor check_sum(struct check *c, enum dtype dtype, int64_t rows, int64_t columns);
/* Like check_normal or, for CHECK_WRITE, check_sum, but the first element is one element past an
 * address that a vector could be loaded from. */
struct tensor check_misaligned(struct check *c, enum check_use use, enum dtype dtype, int64_t rows,
                               int64_t columns);

/* Random integers in 0..limit-1; *host is set to the same numbers on the host. */
const int32_t *check_tokens(struct check *c, int64_t count, int32_t limit, const int32_t **host);

/* Keys of `count` queries in backend memory. */
const struct decode_keys *check_decode_keys(struct check *c, const struct decode_keys *keys,
                                            int64_t count);

/* Zeros on the host, valid until the run ends. */
double *check_doubles(struct check *c, int64_t count);

/* Returns the tensor's current values on the host, exactly. */
double *check_read(struct check *c, const struct tensor *tensor);

/* check_amax returns an amax record for an operation to update, which already holds the result
 * of another tensor. check_amax_covers checks that it now covers the tensor's current values as
 * well. */
struct amax *check_amax(struct check *c, float largest, bool not_finite);
void check_amax_covers(struct check *c, const struct amax *amax, float before, bool bad_before,
                       const struct tensor *tensor);

/* Checks column sums: they must be `before` plus the column sums of the current values of `of`. */
void check_column_sums(struct check *c, const struct tensor *sums, const double *before,
                       const struct tensor *of);

/* Returns the same tensor as rank 3. */
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
 * and half the dtype's smallest subnormal, with the numbers of `kind` in tolerances.c; results so
 * tiny that exponentials underflow on the way are not compared. The magnitude of an element is the
 * sum of the absolute values of its terms; NULL: the largest |expected| of the tensor. Fails the
 * test with the worst element. With CHECK_VERBOSE in the environment, prints how much of the
 * tolerance was used. */
void check_close(struct check *c, const char *kind, const struct tensor *got,
                 const double *expected, const double *magnitude);

/* Like check_close for values that are exact in the tensor's dtype. */
void check_equal(struct check *c, const char *what, const struct tensor *got,
                 const double *expected);

/* Returns the nearest value of dtype, ties to even, without the code under test. */
double check_round(double value, enum dtype dtype);

/* Half the distance between 1 and the next value. */
double check_roundoff(enum dtype dtype);

/* The same for operands of products of the dtype: of TF32, which has the fraction of fp16, with
 * c->tf32. */
double check_operand_roundoff(const struct check *c, enum dtype dtype);
/* Returns the nearest value that such an operand can have, unless it is too large for fp16. */
double check_operand(const struct check *c, enum dtype dtype, double value);

/* Magnitude to add for check_close, as a multiple of |A B|, where cuBLASLt may round a matmul's A B
 * to the dtype of out before it adds it to out, or before the bias of a GELU (kernels.h); 0 on CPUs
 * and for fp32. */
double check_early_rounding(const struct check *c, const char *kind, enum dtype out);

/* Returns the derivative of f at x by central differences of order 4. f must be smooth and
 * computed in fp64, so the error is about 1e-11 of its values: exact at fp32's precision. `x`
 * points into `state`, which f reads; it is restored. */
double check_derivative(double (*f)(const void *state), const void *state, double *x);

/* tolerances.c */
struct tolerance {
    const char *kind;
    double arithmetic[3]; /* by enum dtype of the output, in 2^-24 of the magnitude */
    double roundings;     /* rounding to the dtype of the output, the final one included */
};
const struct tolerance *tolerance_of(const char *kind);
