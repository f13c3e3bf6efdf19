/* Amax tracking by operations that write tensors. An earlier amax stays if it is larger, and so
 * does an earlier non-finite flag; values count as they are stored. The test of each operation
 * checks the amax of its own tensor. */
#include <criterion/criterion.h>
#include <math.h>

#include "test/kernels/check.h"

struct joined {
    enum dtype dtype;
    int64_t rows, columns;
    double planted[2];
    float before;
    bool bad_before;
};

/* The stored value is the input's: gelu of a large number is the number itself, or zero. */
static void flat(struct check *c, const struct joined *j, const double *values) {
    struct tensor in = check_tensor(c, CHECK_READ, DTYPE_F32, j->rows, j->columns, values);
    struct tensor out = check_output(c, j->dtype, j->rows, j->columns);
    struct amax *amax = check_amax(c, j->before, j->bad_before);
    CHECK_OP(c, gelu_forward, .out = &out, .in = &in, .track_amax = amax);
    if (c->verify) check_amax_covers(c, amax, j->before, j->bad_before, &out);
    out = check_output(c, j->dtype, j->rows, j->columns);
    amax = check_amax(c, j->before, j->bad_before);
    CHECK_OP(c, cast, .out = &out, .in = &in, .track_amax = amax);
    if (c->verify) check_amax_covers(c, amax, j->before, j->bad_before, &out);
}

static void gated(struct check *c, const struct joined *j, const double *values) {
    struct tensor in = check_tensor(c, CHECK_READ, DTYPE_F32, j->rows, 2 * j->columns, values);
    struct tensor out = check_output(c, j->dtype, j->rows, j->columns);
    struct amax *amax = check_amax(c, j->before, j->bad_before);
    CHECK_OP(c, gated_forward, .out = &out, .gate_up = &in, .track_amax = amax);
    if (c->verify) check_amax_covers(c, amax, j->before, j->bad_before, &out);
}

/* The row is divided by the planted value, so the weight is large instead. */
static void norm(struct check *c, const struct joined *j, const double *values) {
    double *weights = check_doubles(c, j->columns);
    for (int64_t i = 0; i < j->columns; i++) weights[i] = 1;
    weights[j->columns / 2] = j->planted[0];
    struct tensor in = check_tensor(c, CHECK_READ, DTYPE_BF16, j->rows, j->columns, values);
    struct tensor weight = check_tensor(c, CHECK_READ, DTYPE_F32, j->columns, 0, weights);
    struct tensor out = check_output(c, j->dtype, j->rows, j->columns);
    struct tensor rstd = check_output(c, DTYPE_F32, j->rows, 0);
    struct amax *amax = check_amax(c, j->before, j->bad_before);
    CHECK_OP(c, layernorm_forward, .out = &out, .rstd = rstd.data, .in = &in, .weight = &weight,
             .epsilon = 1e-6f, .track_amax = amax);
    if (c->verify) check_amax_covers(c, amax, j->before, j->bad_before, &out);
}

static void body(struct check *c, const void *given) {
    const struct joined *j = given;
    int64_t count = j->rows * j->columns;
    struct tensor random = check_normal(c, DTYPE_F32, j->rows, 2 * j->columns, 1.0);
    double *values = check_read(c, &random);
    norm(c, j, values);
    values[count / 3] = j->planted[0], values[count - 1] = j->planted[1];
    flat(c, j, values);
    values[2 * count - 1] = j->planted[1];
    gated(c, j, values);
}

/* 65520 is finite in fp32, and infinite when stored in fp16. The same holds for the largest
 * number of fp32 in bf16. */
Test(amax, joins_what_is_stored) {
    static const double planted[][2] = {{3, -3},  {65520, 5},     {3.4e38, 0.5}, {INFINITY, 1e4},
                                        {NAN, 7}, {2, -INFINITY}, {1e30, 2e30},  {-65519, 65519}};
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static const int64_t sizes[][2] = {{5, 40}, {3, 13}, {70, 512}};
    for (int i = 0; i < 8 * 3 * 3; i++) {
        struct joined j = {dtypes[i % 3],
                           sizes[i / 3 % 3][0],
                           sizes[i / 3 % 3][1],
                           {planted[i / 9][0], planted[i / 9][1]},
                           i % 4 == 0   ? 0
                           : i % 4 == 1 ? 0x1p-140f
                           : i % 4 == 2 ? 0x1p120f
                                        : 100.0f,
                           i % 5 == 0};
        check_everywhere(body, &j);
    }
}
