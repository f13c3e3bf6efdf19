#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "test/kernels/bench.h"
#include "test/kernels/check.h"

struct shape {
    int batch, length, columns, kernel;
    int more; /* columns of `in` after those that are read */
    enum dtype dtype, parameter;
    int document; /* rows of a document; 0: sequences are one */
};

static const struct shape shapes[] = {
    {1, 1, 1, 1, 0, DTYPE_F32, DTYPE_F32, 0},     {2, 77, 24, 4, 5, DTYPE_F32, DTYPE_F32, 0},
    {3, 77, 130, 4, 6, DTYPE_BF16, DTYPE_F32, 5}, {1, 300, 40, 3, 0, DTYPE_F16, DTYPE_F16, 2},
    {2, 3, 264, 8, 8, DTYPE_BF16, DTYPE_BF16, 0}, {1, 200, 256, 4, 8, DTYPE_F32, DTYPE_BF16, 70},
};
#define EACH_SHAPE(s) (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)

struct operands {
    struct tensor in, weight, dout, out, din, dweight;
    int32_t *host; /* first keys */
    const int32_t *first_keys;
};

static struct operands make(struct check *c, const struct shape *s) {
    const int64_t rows = (int64_t)s->batch * s->length, wide = s->columns + s->more;
    struct operands o = {
        .in = check_normal(c, s->dtype, rows, wide, 1.0),
        .weight = check_normal(c, s->parameter, s->columns, s->kernel, 0.5),
        .dout = check_normal(c, s->dtype, rows, s->columns, 1.0),
        .out = check_output(c, s->dtype, rows, s->columns),
        .din = check_sum(c, s->dtype, rows, wide),
        .dweight = check_sum(c, s->parameter, s->columns, s->kernel),
        .host = (int32_t *)(void *)check_doubles(c, rows),
    };
    o.in = check_rank3(o.in, s->batch, s->length, wide);
    for (int64_t i = 0; s->document && i < rows; i++) {
        const int t = (int)(i % s->length);
        o.host[i] = t / s->document * s->document;
    }
    if (s->document)
        o.first_keys = check_memory(c, CHECK_READ, o.host, (size_t)rows * sizeof *o.host);
    return o;
}

/* Sum before SiLU of a row and column; *size: that of absolute values. */
static double convolve(const struct shape *s, const double *in, const double *weight,
                       const int32_t *first_keys, int64_t row, int column, double *size) {
    double sum = 0;
    *size = 0;
    for (int j = 0; j < s->kernel; j++) {
        const int64_t t = row % s->length - s->kernel + 1 + j, at = row - s->kernel + 1 + j;
        if (t < first_keys[row]) continue;
        const double term =
            weight[column * s->kernel + j] * in[at * (s->columns + s->more) + column];
        sum += term, *size += fabs(term);
    }
    return sum;
}

static double silu(double x) {
    return x / (1 + exp(-x));
}

static double silu_slope(double x) {
    const double s = 1 / (1 + exp(-x));
    return s + x * s * (1 - s);
}

/* |silu'| and |silu''| are at most 1.1 and 0.5: the error of a sum enters the result at most as
 * often. */
static void both_passes(struct check *c, const void *given) {
    const struct shape *s = given;
    struct operands o = make(c, s);
    const int64_t rows = (int64_t)s->batch * s->length, wide = s->columns + s->more;
    double *in = check_read(c, &o.in), *weight = check_read(c, &o.weight);
    double *dout = check_read(c, &o.dout), *din = check_read(c, &o.din);
    double *dweight = check_read(c, &o.dweight);
    CHECK_OP(c, causal_convolution_forward, .out = &o.out, .in = &o.in, .weight = &o.weight,
             .first_keys = o.first_keys);
    CHECK_OP(c, causal_convolution_backward, .din = &o.din, .dweight = &o.dweight, .dout = &o.dout,
             .in = &o.in, .weight = &o.weight, .first_keys = o.first_keys);
    if (!c->verify) return;
    double *out = check_doubles(c, rows * s->columns), *size = check_doubles(c, rows * s->columns);
    double *din_size = check_doubles(c, rows * wide);
    double *dweight_size = check_doubles(c, s->columns * s->kernel);
    for (int64_t i = 0; i < s->columns * s->kernel; i++) dweight_size[i] = fabs(dweight[i]);
    for (int64_t row = 0; row < rows; row++)
        for (int column = 0; column < s->columns; column++) din[row * wide + column] = 0;
    for (int64_t i = 0; i < rows * s->columns; i++) {
        const int64_t row = i / s->columns;
        const int column = (int)(i % s->columns);
        const double x = convolve(s, in, weight, o.host, row, column, &size[i]);
        const double d = dout[i] * silu_slope(x), d_size = fabs(dout[i]) * (1.1 + size[i]);
        out[i] = silu(x), size[i] = 1.1 * size[i] + fabs(out[i]);
        for (int j = 0; j < s->kernel; j++) {
            const int64_t t = row % s->length - s->kernel + 1 + j, from = row - s->kernel + 1 + j;
            const int w = column * s->kernel + j;
            if (t < o.host[row]) continue;
            din[from * wide + column] += weight[w] * d;
            din_size[from * wide + column] += fabs(weight[w]) * d_size;
            dweight[w] += d * in[from * wide + column];
            dweight_size[w] += d_size * fabs(in[from * wide + column]);
        }
    }
    check_close(c, "causal_convolution", &o.out, out, size);
    check_close(c, "causal_convolution", &o.din, din, din_size);
    check_close(c, "causal_convolution", &o.dweight, dweight, dweight_size);
}

Test(causal_convolution, both_passes) {
    for
        EACH_SHAPE(s) check_everywhere(both_passes, &shapes[s]);
}

/* Rows first .. first + count - 1 of each sequence. */
static struct tensor rows_of(struct check *c, const struct shape *s, const struct tensor *from,
                             int first, int count) {
    const int64_t columns = tensor_columns(from);
    double *values = check_read(c, from), *rows = check_doubles(c, s->batch * count * columns);
    for (int b = 0; b < s->batch; b++)
        memcpy(rows + b * count * columns, values + (b * s->length + first) * columns,
               (size_t)(count * columns) * sizeof *rows);
    struct tensor t = check_tensor(c, CHECK_READ, from->dtype, s->batch * count, columns, rows);
    return check_rank3(t, s->batch, count, columns);
}

/* Parts of sequences, with a tail, have the bits of the whole. */
static void resumed(struct check *c, const void *given) {
    const struct shape *s = given;
    struct operands o = make(c, s);
    const int parts[][2] = {{2, 5}, {1, 1}, {1, 4}, {40, 40}, {5, 9}, {1, 1}}; /* rows, padded */
    CHECK_OP(c, causal_convolution_forward, .out = &o.out, .in = &o.in, .weight = &o.weight);
    struct tensor tail = check_output(c, s->dtype, s->batch * (s->kernel - 1), s->columns);
    tail = check_rank3(tail, s->batch, s->kernel - 1, s->columns);
    for (int i = 0, first = 0; i < 6; first += parts[i++][0]) {
        const int count = parts[i][0], padded = parts[i][1];
        struct shape part = *s;
        struct tensor in = rows_of(c, s, &o.in, first, padded);
        struct tensor out = check_output(c, s->dtype, s->batch * padded, s->columns);
        CHECK_OP(c, causal_convolution_forward, .out = &out, .tail = &tail, .in = &in,
                 .weight = &o.weight, .state_rows = count, .resumes = i > 0);
        part.length = padded;
        struct tensor got = rows_of(c, &part, &out, 0, count);
        struct tensor expected = rows_of(c, s, &o.out, first, count);
        check_equal(c, "resumed", &got, check_read(c, &expected));
    }
}

Test(causal_convolution, generation_resumes_from_a_tail) {
    check_everywhere(resumed, &shapes[1]);
    check_everywhere(resumed, &(struct shape){2, 77, 130, 4, 6, DTYPE_BF16, DTYPE_BF16, 0});
}

enum { TIMED_COLUMNS = 6144 }; /* of Qwen3.5 0.8B */

static size_t time_forward(struct bench *b, int variant) {
    struct tensor in = bench_rows(b, (enum dtype)variant, TIMED_COLUMNS), out = in;
    struct tensor weight = arena_tensor(&b->arena, DTYPE_F32, TIMED_COLUMNS, 4);
    out = bench_rows(b, (enum dtype)variant, TIMED_COLUMNS);
    in = check_rank3(in, 1, tensor_rows(&in), TIMED_COLUMNS);
    OP(&b->be, causal_convolution_forward, .out = &out, .in = &in, .weight = &weight);
    return 2 * tensor_bytes(&in);
}
BENCH(causal_convolution, forward, bench_dtypes, time_forward)

static size_t time_backward(struct bench *b, int variant) {
    struct tensor in = bench_rows(b, (enum dtype)variant, TIMED_COLUMNS);
    struct tensor dout = bench_rows(b, (enum dtype)variant, TIMED_COLUMNS);
    struct tensor din = bench_rows(b, (enum dtype)variant, TIMED_COLUMNS);
    struct tensor weight = arena_tensor(&b->arena, DTYPE_F32, TIMED_COLUMNS, 4);
    struct tensor dweight = arena_tensor(&b->arena, DTYPE_F32, TIMED_COLUMNS, 4);
    in = check_rank3(in, 1, tensor_rows(&in), TIMED_COLUMNS);
    OP(&b->be, causal_convolution_backward, .din = &din, .dweight = &dweight, .dout = &dout,
       .in = &in, .weight = &weight);
    return 3 * tensor_bytes(&in);
}
BENCH(causal_convolution, backward, bench_dtypes, time_backward)
