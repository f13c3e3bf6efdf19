#include <criterion/criterion.h>
#include <math.h>

#include "test/kernels/bench.h"
#include "test/kernels/check.h"

static const double EPSILON = 1e-6f;

struct shape {
    int64_t rows, heads, size;
    int64_t before, after; /* columns around the gate */
    enum dtype dtype, parameter;
};

static const struct shape shapes[] = {
    {1, 1, 1, 0, 0, DTYPE_F32, DTYPE_F32},
    {77, 6, 40, 5, 3, DTYPE_F32, DTYPE_F32},
    {33, 4, 128, 16, 8, DTYPE_BF16, DTYPE_F32},
    {9, 2, 256, 0, 4, DTYPE_F16, DTYPE_F16},
    {300, 1, 64, 64, 0, DTYPE_BF16, DTYPE_BF16},
    {50, 5, 7, 3, 0, DTYPE_F32, DTYPE_F32}}; /* a lane is a head's team */

/* Gradients of one head, and the sums of absolute values of their terms. */
static void reference(double *out, double *d, double *d_size, double *dz, double *dw,
                      double *dw_size, const double *x, const double *z, const double *w,
                      int64_t n) {
    double squares = 0, sum = 0, sum_size = 0;
    for (int64_t j = 0; j < n; j++) squares += x[j] * x[j];
    const double rstd = 1 / sqrt(squares / (double)n + EPSILON);
    for (int64_t j = 0; j < n; j++) {
        const double h = x[j] * rstd, l = 1 / (1 + exp(-z[j])), s = z[j] * l;
        out[j] = h * w[j] * s;
        dz[j] = d[j] * h * w[j] * (l + s * (1 - l));
        dw[j] += d[j] * h * s, dw_size[j] += fabs(d[j] * h * s);
        d[j] *= w[j] * s;
        sum += d[j] * h, sum_size += fabs(d[j] * h);
    }
    for (int64_t j = 0; j < n; j++) {
        const double h = x[j] * rstd;
        d_size[j] = rstd * (fabs(d[j]) + fabs(h) * sum_size / (double)n);
        d[j] = rstd * (d[j] - h * sum / (double)n);
    }
}

/* in_place: din is dout. */
static void both_passes(struct check *c, const struct shape *s, bool in_place) {
    const int64_t columns = s->heads * s->size, wide = s->before + columns + s->after;
    struct tensor in = check_normal(c, s->dtype, s->rows, columns, 2.0);
    struct tensor gate = check_normal(c, s->dtype, s->rows, wide, 2.0);
    struct tensor weight = check_normal(c, DTYPE_F32, s->size, 0, 1.0);
    struct tensor dout = check_sum(c, s->dtype, s->rows, columns);
    struct tensor din = in_place ? dout : check_output(c, s->dtype, s->rows, columns);
    struct tensor out = check_output(c, s->dtype, s->rows, columns);
    struct tensor dgate = check_sum(c, s->dtype, s->rows, wide);
    struct tensor dweight = check_sum(c, s->parameter, s->size, 0);
    double *x = check_read(c, &in), *z = check_read(c, &gate), *w = check_read(c, &weight);
    double *d = check_read(c, &dout), *dz = check_read(c, &dgate), *dw = check_read(c, &dweight);
    CHECK_OP(c, gated_norm_forward, .out = &out, .in = &in, .gate = &gate, .weight = &weight,
             .gate_column = s->before, .epsilon = (float)EPSILON);
    CHECK_OP(c, gated_norm_backward, .din = &din, .dgate = &dgate, .dweight = &dweight,
             .dout = &dout, .in = &in, .gate = &gate, .weight = &weight, .gate_column = s->before,
             .epsilon = (float)EPSILON);
    if (!c->verify) return;
    double *expected = check_doubles(c, s->rows * columns);
    double *d_size = check_doubles(c, s->rows * columns), *dw_size = check_read(c, &dweight);
    double *size = check_doubles(c, s->rows * wide);
    for (int64_t j = 0; j < s->size; j++) dw_size[j] = fabs(dw[j]);
    for (int64_t i = 0; i < s->rows * s->heads; i++) {
        const int64_t at = i * s->size;
        const int64_t g = i / s->heads * wide + s->before + i % s->heads * s->size;
        reference(expected + at, d + at, d_size + at, dz + g, dw, dw_size, x + at, z + g, w,
                  s->size);
        /* The error of silu' near its zero is that of its terms, which are at most 1.2. */
        for (int64_t j = 0; j < s->size; j++) {
            const double slope = 1 / (1 + exp(-z[g + j]));
            const double whole = fabs(slope + z[g + j] * slope * (1 - slope));
            size[g + j] = fabs(dz[g + j]) / whole * 1.2;
        }
    }
    check_close(c, "gated_norm", &out, expected, expected);
    check_close(c, "gated_norm_backward", &din, d, d_size);
    check_close(c, "gated_norm_backward", &dgate, dz, size);
    check_close(c, "gated_norm_backward", &dweight, dw, dw_size);
}

static void apart(struct check *c, const void *given) {
    both_passes(c, given, false);
}

static void in_place(struct check *c, const void *given) {
    both_passes(c, given, true);
}

Test(gated_norm, both_passes) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_everywhere(apart, &shapes[i]);
        check_everywhere(in_place, &shapes[i]);
    }
}

enum { TIMED_SIZE = 128, TIMED_COLUMNS = 16 * TIMED_SIZE }; /* of Qwen3.5 0.8B */

static size_t time_forward(struct bench *b, int variant) {
    struct tensor in = bench_rows(b, (enum dtype)variant, TIMED_COLUMNS);
    struct tensor gate = bench_rows(b, (enum dtype)variant, TIMED_COLUMNS);
    struct tensor out = bench_rows(b, (enum dtype)variant, TIMED_COLUMNS);
    struct tensor weight = arena_tensor(&b->arena, DTYPE_F32, TIMED_SIZE, 0);
    OP(&b->be, gated_norm_forward, .out = &out, .in = &in, .gate = &gate, .weight = &weight,
       .epsilon = 1e-6f);
    return 3 * tensor_bytes(&in);
}
BENCH(gated_norm, forward, bench_dtypes, time_forward)

static size_t time_backward(struct bench *b, int variant) {
    struct tensor in = bench_rows(b, (enum dtype)variant, TIMED_COLUMNS);
    struct tensor gate = bench_rows(b, (enum dtype)variant, TIMED_COLUMNS);
    struct tensor dout = bench_rows(b, (enum dtype)variant, TIMED_COLUMNS);
    struct tensor dgate = bench_rows(b, (enum dtype)variant, TIMED_COLUMNS);
    struct tensor weight = arena_tensor(&b->arena, DTYPE_F32, TIMED_SIZE, 0);
    struct tensor dweight = arena_tensor(&b->arena, DTYPE_F32, TIMED_SIZE, 0);
    OP(&b->be, gated_norm_backward, .din = &dout, .dgate = &dgate, .dweight = &dweight,
       .dout = &dout, .in = &in, .gate = &gate, .weight = &weight, .epsilon = 1e-6f);
    return 5 * tensor_bytes(&in);
}
BENCH(gated_norm, backward, bench_dtypes, time_backward)
