/* Layer norm without mean and bias. */
#include <criterion/criterion.h>
#include <math.h>

#include "test/kernels/bench.h"
#include "test/kernels/check.h"

static const double EPSILON = 1e-6f;

struct shape {
    int64_t rows, columns;
    bool has_residual, has_lower;
    enum dtype branch, stream, out;
    bool replaces; /* the gradient of the output by that of the input */
};

static const struct shape shapes[] = {
    {26, 40, false, false, DTYPE_F32, DTYPE_F32, DTYPE_F32, false},
    {1, 1, true, false, DTYPE_F32, DTYPE_F32, DTYPE_F32, false},
    {77, 72, true, true, DTYPE_BF16, DTYPE_F32, DTYPE_BF16, false},
    {77, 576, true, true, DTYPE_F16, DTYPE_F32, DTYPE_F16, false},
    {33, 515, true, false, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, false},
    {5, 4104, true, true, DTYPE_BF16, DTYPE_F32, DTYPE_BF16,
     false}, /* wider than a block of CUDA */
    {16390, 8, false, false, DTYPE_F32, DTYPE_F32, DTYPE_F32, false},
    {9, 48, true, true, DTYPE_BF16, DTYPE_F16, DTYPE_F32,
     false}, /* mixed dtypes that no model uses */
    {77, 72, false, false, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, true},
    {26, 4104, false, false, DTYPE_F32, DTYPE_F32, DTYPE_F32, true},
};
#define EACH_SHAPE(s) (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)

static double rstd_of(const double *row, int64_t columns) {
    double sum = 0;
    for (int64_t i = 0; i < columns; i++) sum += row[i] * row[i];
    return 1 / sqrt(sum / (double)columns + EPSILON);
}

static void forward(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t rows = s->rows, columns = s->columns, count = rows * columns;
    struct tensor in = check_normal(c, s->has_residual ? s->branch : s->stream, rows, columns, 1.0);
    struct tensor residual = check_normal(c, s->stream, rows, columns, 2.0);
    struct tensor sum = check_output(c, s->stream, rows, columns);
    struct tensor weight = check_normal(c, DTYPE_F32, columns, 0, 1.0);
    struct tensor out = check_output(c, s->out, rows, columns);
    struct tensor rstd = check_output(c, DTYPE_F32, rows, 0);
    struct amax *amax = check_amax(c, 0, false);
    CHECK_OP(c, layernorm_forward, .out = &out, .sum = s->has_residual ? &sum : NULL,
             .rstd = rstd.data, .in = &in, .residual = s->has_residual ? &residual : NULL,
             .weight = &weight, .epsilon = (float)EPSILON, .track_amax = amax);
    if (!c->verify) return;
    check_amax_covers(c, amax, 0, false, &out);
    double *x = check_read(c, &in), *more = check_read(c, &residual), *w = check_read(c, &weight);
    double *expected = check_doubles(c, count), *expected_rstd = check_doubles(c, rows);
    if (s->has_residual) {
        double *size = check_doubles(c, count);
        for (int64_t i = 0; i < count; i++) size[i] = fabs(x[i]) + fabs(more[i]), x[i] += more[i];
        check_close(c, "residual_sum", &sum, x, size);
        x = check_read(c, &sum);
    }
    for (int64_t r = 0; r < rows; r++) {
        expected_rstd[r] = rstd_of(x + r * columns, columns);
        for (int64_t i = 0; i < columns; i++)
            expected[r * columns + i] = x[r * columns + i] * expected_rstd[r] * w[i];
    }
    check_close(c, "layernorm_rstd", &rstd, expected_rstd, NULL);
    /* rstd depends on one sum, and the error of a sum of squares is relative: see
     * layernorm_rstd. */
    check_close(c, "rmsnorm_forward", &out, expected, expected);
}

Test(rmsnorm, forward) {
    for
        EACH_SHAPE(s) check_everywhere(forward, &shapes[s]);
}

struct gradients {
    double *din, *din_size, *dweight, *dweight_size;
};

/* With d = dout * weight and h = in * rstd: rstd * (d - h * mean(d * h)). */
static void reference(const struct gradients *g, const struct shape *s, const double *x,
                      const double *dout, const double *weight, const double *rstd) {
    for (int64_t r = 0; r < s->rows; r++, x += s->columns, dout += s->columns) {
        double sum = 0, size = 0, n = (double)s->columns;
        for (int64_t i = 0; i < s->columns; i++) {
            double dh = dout[i] * weight[i] * x[i] * rstd[r];
            sum += dh, size += fabs(dh);
            g->dweight[i] += dout[i] * x[i] * rstd[r];
            g->dweight_size[i] += fabs(dout[i] * x[i] * rstd[r]);
        }
        for (int64_t i = 0; i < s->columns; i++) {
            int64_t at = r * s->columns + i;
            double d = dout[i] * weight[i], h = x[i] * rstd[r];
            g->din[at] += rstd[r] * (d - h * sum / n);
            g->din_size[at] += rstd[r] * (fabs(d) + fabs(h) * size / n);
        }
    }
}

static void backward(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t rows = s->rows, columns = s->columns, count = rows * columns;
    struct tensor dout = s->replaces ? check_sum(c, s->out, rows, columns)
                                     : check_normal(c, s->out, rows, columns, 1.0);
    struct tensor in = check_normal(c, s->stream, rows, columns, 2.0);
    struct tensor weight = check_normal(c, DTYPE_F32, columns, 0, 1.0);
    struct tensor din = s->replaces ? dout : check_sum(c, s->stream, rows, columns);
    struct tensor lower = check_output(c, s->branch, rows, columns);
    struct tensor dweight = check_sum(c, DTYPE_F32, columns, 0);
    double *x = check_read(c, &in), *rstds = check_doubles(c, rows);
    for (int64_t r = 0; r < rows; r++) rstds[r] = rstd_of(x + r * columns, columns);
    struct tensor rstd = check_tensor(c, CHECK_READ, DTYPE_F32, rows, 0, rstds);
    struct gradients g = {check_doubles(c, count), check_doubles(c, count), check_read(c, &dweight),
                          check_doubles(c, columns)};
    double *douts = check_read(c, &dout);
    if (s->has_residual) g.din = check_read(c, &din);
    for (int64_t i = 0; i < count; i++) g.din_size[i] = fabs(g.din[i]);
    for (int64_t i = 0; i < columns; i++) g.dweight_size[i] = fabs(g.dweight[i]);
    struct amax *amax = check_amax(c, 0, false);
    struct tensor sums = check_sum(c, DTYPE_F32, columns, 0);
    double *sums_before = check_read(c, &sums);
    CHECK_OP(c, layernorm_backward, .din = &din, .din_lower = s->has_lower ? &lower : NULL,
             .dweight = &dweight, .dout = &dout, .in = &in, .rstd = rstd.data, .weight = &weight,
             .dresidual = s->has_residual ? &din : NULL, .track_amax = amax,
             .column_sums = s->has_lower ? &sums : NULL);
    if (!c->verify) return;
    if (s->has_lower) check_column_sums(c, &sums, sums_before, &lower);
    check_amax_covers(c, amax, 0, false, s->has_lower ? &lower : &din);
    reference(&g, s, x, douts, check_read(c, &weight), check_read(c, &rstd));
    check_close(c, "layernorm_backward", &din, g.din, g.din_size);
    if (s->has_lower) check_close(c, "layernorm_backward", &lower, g.din, g.din_size);
    check_close(c, "layernorm_dweight", &dweight, g.dweight, g.dweight_size);
}

Test(rmsnorm, backward) {
    for
        EACH_SHAPE(s) check_everywhere(backward, &shapes[s]);
}

/* sum(dout * rmsnorm(in)) for one row. */
enum { WIDTH = 7 };
struct problem {
    double in[WIDTH], weight[WIDTH], dout[WIDTH];
};

static double objective(const void *state) {
    const struct problem *p = state;
    double total = 0, rstd = rstd_of(p->in, WIDTH);
    for (int i = 0; i < WIDTH; i++) total += p->dout[i] * p->in[i] * rstd * p->weight[i];
    return total;
}

static void differences(struct check *c, const void *given) {
    (void)given;
    struct problem p;
    for (int i = 0; i < WIDTH; i++) {
        p.in[i] = (i + 1) * (i % 2 ? -0.25 : 0.5);
        p.weight[i] = 1 + 0.125 * i;
        p.dout[i] = i % 3 - 0.5;
    }
    double rstds[1] = {rstd_of(p.in, WIDTH)}, zeros[WIDTH] = {0}, expected[WIDTH];
    struct tensor in = check_tensor(c, CHECK_READ, DTYPE_F32, 1, WIDTH, p.in);
    struct tensor weight = check_tensor(c, CHECK_READ, DTYPE_F32, WIDTH, 0, p.weight);
    struct tensor dout = check_tensor(c, CHECK_READ, DTYPE_F32, 1, WIDTH, p.dout);
    struct tensor rstd = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, rstds);
    struct tensor din = check_output(c, DTYPE_F32, 1, WIDTH);
    struct tensor dweight = check_tensor(c, CHECK_WRITE, DTYPE_F32, WIDTH, 0, zeros);
    CHECK_OP(c, layernorm_backward, .din = &din, .dweight = &dweight, .dout = &dout, .in = &in,
             .rstd = rstd.data, .weight = &weight);
    if (!c->verify) return;
    for (int i = 0; i < WIDTH; i++) expected[i] = check_derivative(objective, &p, &p.in[i]);
    check_close(c, "differences", &din, expected, NULL);
    for (int i = 0; i < WIDTH; i++) expected[i] = check_derivative(objective, &p, &p.weight[i]);
    check_close(c, "differences", &dweight, expected, NULL);
}

Test(rmsnorm, finite_differences) {
    check_everywhere(differences, NULL);
}

static size_t time_forward(struct bench *b, int variant) {
    struct tensor in = bench_rows(b, (enum dtype)variant, BENCH_WIDTH);
    struct tensor out = bench_rows(b, (enum dtype)variant, BENCH_WIDTH);
    struct tensor sum = bench_rows(b, DTYPE_F32, BENCH_WIDTH), rstd = bench_rows(b, DTYPE_F32, 0);
    struct tensor weight = arena_tensor(&b->arena, DTYPE_F32, BENCH_WIDTH, 0);
    OP(&b->be, layernorm_forward, .out = &out, .sum = &sum, .rstd = rstd.data, .in = &in,
       .residual = &sum, .weight = &weight, .epsilon = 1e-5f);
    return tensor_bytes(&in) + tensor_bytes(&out) + 2 * tensor_bytes(&sum);
}
BENCH(rmsnorm, forward_with_residual, bench_dtypes, time_forward)

static size_t time_backward(struct bench *b, int variant) {
    struct tensor dout = bench_rows(b, (enum dtype)variant, BENCH_WIDTH);
    struct tensor lower = bench_rows(b, (enum dtype)variant, BENCH_WIDTH);
    struct tensor din = bench_rows(b, DTYPE_F32, BENCH_WIDTH);
    struct tensor in = bench_rows(b, DTYPE_F32, BENCH_WIDTH), rstd = bench_rows(b, DTYPE_F32, 0);
    struct tensor weight = arena_tensor(&b->arena, DTYPE_F32, BENCH_WIDTH, 0);
    struct tensor dweight = arena_tensor(&b->arena, DTYPE_F32, BENCH_WIDTH, 0);
    bool has_lower = variant != DTYPE_F32;
    OP(&b->be, layernorm_backward, .din = &din, .din_lower = has_lower ? &lower : NULL,
       .dweight = &dweight, .dout = &dout, .in = &in, .rstd = rstd.data, .weight = &weight,
       .dresidual = &din);
    return tensor_bytes(&dout) + (has_lower ? tensor_bytes(&lower) : 0) + 3 * tensor_bytes(&in);
}
BENCH(rmsnorm, backward, bench_dtypes, time_backward)
