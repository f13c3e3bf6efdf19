#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#include "test/kernels/golden.h"

static const double EPSILON = 1e-5f;

enum alias { SUM_APART, SUM_IS_IN, SUM_IS_RESIDUAL };

struct shape {
    int64_t rows, columns;
    bool has_residual;
    enum dtype in, residual, sum, out;
    enum alias alias;
};

static const struct shape shapes[] = {
    {26, 40, false, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32, SUM_APART},
    {1, 1, false, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32, SUM_APART},
    {77, 72, true, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32, SUM_APART},
    {77, 72, true, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32, SUM_IS_RESIDUAL},
    {5, 1100, true, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32, SUM_IS_IN},
    {77, 72, true, DTYPE_BF16, DTYPE_F32, DTYPE_F32, DTYPE_BF16, SUM_IS_RESIDUAL},
    {77, 72, true, DTYPE_F16, DTYPE_F32, DTYPE_F32, DTYPE_F16, SUM_APART},
    {33, 515, true, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, SUM_IS_RESIDUAL},
    {7, 33, true, DTYPE_F16, DTYPE_F16, DTYPE_F16, DTYPE_F16, SUM_IS_IN},
    {7, 33, false, DTYPE_BF16, DTYPE_F32, DTYPE_F32, DTYPE_F32, SUM_APART},
    /* Sizes around the capacity of a warp, a block and a thread of the CUDA kernels. */
    {4, 256, true, DTYPE_BF16, DTYPE_F32, DTYPE_F32, DTYPE_F32, SUM_IS_RESIDUAL},
    {9, 264, true, DTYPE_F32, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, SUM_APART},
    {6, 248, false, DTYPE_F16, DTYPE_F32, DTYPE_F32, DTYPE_F16, SUM_APART},
    {3, 4096, true, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, SUM_IS_IN},
    {2, 4104, true, DTYPE_BF16, DTYPE_F32, DTYPE_F32, DTYPE_BF16, SUM_IS_RESIDUAL},
    /* Mixed dtypes that no model uses. */
    {5, 40, true, DTYPE_BF16, DTYPE_F16, DTYPE_F32, DTYPE_F16, SUM_APART},
};
#define EACH_SHAPE(s) (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)

static double mean_of(const double *row, int64_t columns, bool absolute) {
    double sum = 0;
    for (int64_t i = 0; i < columns; i++) sum += absolute ? fabs(row[i]) : row[i];
    return sum / (double)columns;
}

static double rstd_of(const double *row, int64_t columns) {
    double mean = mean_of(row, columns, false), sum = 0;
    for (int64_t i = 0; i < columns; i++) sum += (row[i] - mean) * (row[i] - mean);
    return 1 / sqrt(sum / (double)columns + EPSILON);
}

struct forward_tensors {
    struct tensor in, residual, sum, weight, bias, out, mean, rstd;
};

/* x: the normalized input, as it was stored. */
static void verify_forward(struct check *c, const struct forward_tensors *t, const double *x) {
    int64_t rows = tensor_rows(&t->out), columns = tensor_columns(&t->out), count = rows * columns;
    double *weight = check_read(c, &t->weight), *bias = check_read(c, &t->bias);
    double *out = check_doubles(c, count), *out_size = check_doubles(c, count);
    double *mean = check_doubles(c, rows), *mean_size = check_doubles(c, rows);
    double *rstd = check_doubles(c, rows);
    for (int64_t r = 0; r < rows; r++) {
        mean[r] = mean_of(x + r * columns, columns, false);
        mean_size[r] = mean_of(x + r * columns, columns, true);
        rstd[r] = rstd_of(x + r * columns, columns);
        for (int64_t i = 0; i < columns; i++) {
            int64_t at = r * columns + i;
            out[at] = (x[at] - mean[r]) * rstd[r] * weight[i] + bias[i];
            out_size[at] = (fabs(x[at]) + mean_size[r]) * rstd[r] * fabs(weight[i]) + fabs(bias[i]);
        }
    }
    check_close(c, "layernorm_mean", &t->mean, mean, mean_size);
    check_close(c, "layernorm_rstd", &t->rstd, rstd, NULL);
    check_close(c, "layernorm_forward", &t->out, out, out_size);
}

static void forward(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t rows = s->rows, columns = s->columns, count = rows * columns;
    struct forward_tensors t;
    t.in = s->alias == SUM_IS_IN ? check_sum(c, s->in, rows, columns)
                                 : check_normal(c, s->in, rows, columns, 1.0);
    t.residual = s->alias == SUM_IS_RESIDUAL ? check_sum(c, s->residual, rows, columns)
                                             : check_normal(c, s->residual, rows, columns, 2.0);
    t.sum = s->alias == SUM_IS_IN         ? t.in
            : s->alias == SUM_IS_RESIDUAL ? t.residual
                                          : check_output(c, s->sum, rows, columns);
    t.weight = check_normal(c, DTYPE_F32, columns, 0, 1.0);
    t.bias = check_normal(c, DTYPE_F32, columns, 0, 1.0);
    t.out = check_output(c, s->out, rows, columns);
    t.mean = check_output(c, DTYPE_F32, rows, 0);
    t.rstd = check_output(c, DTYPE_F32, rows, 0);
    double *in = check_read(c, &t.in), *residual = check_read(c, &t.residual);
    struct amax *amax = check_amax(c, 0, false);
    CHECK_OP(c, layernorm_forward, .out = &t.out, .sum = s->has_residual ? &t.sum : NULL,
             .mean = t.mean.data, .rstd = t.rstd.data, .in = &t.in,
             .residual = s->has_residual ? &t.residual : NULL, .weight = &t.weight, .bias = &t.bias,
             .epsilon = (float)EPSILON, .track_amax = amax);
    if (!c->verify) return;
    check_amax_covers(c, amax, 0, false, &t.out);
    if (!s->has_residual) {
        verify_forward(c, &t, in);
        return;
    }
    double *size = check_doubles(c, count);
    for (int64_t i = 0; i < count; i++) {
        size[i] = fabs(in[i]) + fabs(residual[i]);
        in[i] += residual[i];
    }
    check_close(c, "residual_sum", &t.sum, in, size);
    verify_forward(c, &t, check_read(c, &t.sum));
}

Test(layernorm, forward) {
    for
        EACH_SHAPE(s) check_everywhere(forward, &shapes[s]);
}

struct offset_shape {
    int64_t rows, columns;
    enum dtype in, out;
    bool has_bias; /* and a mean */
};

/* weight_offset gives the bits of a weight that holds the sum. */
static void offset(struct check *c, const void *given) {
    const struct offset_shape *s = given;
    int64_t rows = s->rows, columns = s->columns;
    struct tensor in = check_normal(c, s->in, rows, columns, 1.0);
    struct tensor dout = check_normal(c, s->out, rows, columns, 1.0);
    struct tensor bias = check_normal(c, DTYPE_F32, columns, 0, 1.0);
    struct tensor weights[2] = {check_normal(c, DTYPE_F32, columns, 0, 1.0)}, out[2], din[2], dw[2];
    double *sums = check_read(c, &weights[0]), *zeros = check_doubles(c, columns);
    for (int64_t i = 0; i < columns; i++) sums[i] = (float)(sums[i] + 1);
    weights[1] = check_tensor(c, CHECK_READ, DTYPE_F32, columns, 0, sums);
    for (int k = 0; k < 2; k++) {
        struct tensor mean = check_output(c, DTYPE_F32, rows, 0);
        struct tensor rstd = check_output(c, DTYPE_F32, rows, 0);
        struct tensor dbias = check_tensor(c, CHECK_WRITE, DTYPE_F32, columns, 0, zeros);
        out[k] = check_output(c, s->out, rows, columns);
        din[k] = check_output(c, s->in, rows, columns);
        dw[k] = check_tensor(c, CHECK_WRITE, DTYPE_F32, columns, 0, zeros);
        CHECK_OP(c, layernorm_forward, .out = &out[k], .mean = s->has_bias ? mean.data : NULL,
                 .rstd = rstd.data, .in = &in, .weight = &weights[k],
                 .bias = s->has_bias ? &bias : NULL, .weight_offset = k == 0 ? 1 : 0,
                 .epsilon = (float)EPSILON);
        CHECK_OP(c, layernorm_backward, .din = &din[k], .dweight = &dw[k],
                 .dbias = s->has_bias ? &dbias : NULL, .dout = &dout, .in = &in,
                 .mean = s->has_bias ? mean.data : NULL, .rstd = rstd.data, .weight = &weights[k],
                 .weight_offset = k == 0 ? 1 : 0);
    }
    check_equal(c, "out", &out[0], check_read(c, &out[1]));
    check_equal(c, "din", &din[0], check_read(c, &din[1]));
    check_equal(c, "dweight", &dw[0], check_read(c, &dw[1]));
}

Test(layernorm, weight_offset) {
    static const struct offset_shape cases[] = {
        {7, 33, DTYPE_F32, DTYPE_F32, false},     {7, 33, DTYPE_F32, DTYPE_F32, true},
        {77, 264, DTYPE_F32, DTYPE_BF16, false},  {77, 264, DTYPE_F32, DTYPE_BF16, true},
        {33, 515, DTYPE_BF16, DTYPE_BF16, false}, {5, 2568, DTYPE_F32, DTYPE_BF16, false},
        {5, 4104, DTYPE_F32, DTYPE_F16, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_everywhere(offset, &cases[i]);
}

/* A mean of a thousand deviations: one pass over squares would lose all digits. */
static void far_from_zero(struct check *c, const void *given) {
    (void)given;
    struct forward_tensors t;
    double values[3 * 129], ones[129];
    for (int i = 0; i < 3 * 129; i++) values[i] = 1000 + sin(i);
    for (int i = 0; i < 129; i++) ones[i] = 1;
    t.in = check_tensor(c, CHECK_READ, DTYPE_F32, 3, 129, values);
    t.weight = check_tensor(c, CHECK_READ, DTYPE_F32, 129, 0, ones);
    t.bias = check_tensor(c, CHECK_READ, DTYPE_F32, 129, 0, ones);
    t.out = check_output(c, DTYPE_F32, 3, 129);
    t.mean = check_output(c, DTYPE_F32, 3, 0);
    t.rstd = check_output(c, DTYPE_F32, 3, 0);
    CHECK_OP(c, layernorm_forward, .out = &t.out, .mean = t.mean.data, .rstd = t.rstd.data,
             .in = &t.in, .weight = &t.weight, .bias = &t.bias, .epsilon = (float)EPSILON);
    if (c->verify) verify_forward(c, &t, check_read(c, &t.in));
}

Test(layernorm, far_from_zero) {
    check_everywhere(far_from_zero, NULL);
}

struct backward_tensors {
    struct tensor din, lower, dweight, dbias, dout, in, mean, rstd, weight, dresidual;
    struct tensor sums;                                       /* optional */
    double *dweight_before, *dbias_before, *dresidual_before; /* read before the operation */
};

/* With d = dout * weight and h = (in - mean) * rstd, the gradient of a row is
 * rstd * (d - mean(d) - h * mean(d * h)). The sizes are the same sums of absolute values. */
static void verify_backward(struct check *c, const struct backward_tensors *t) {
    int64_t rows = tensor_rows(&t->din), columns = tensor_columns(&t->din), count = rows * columns;
    const double *dout = check_read(c, &t->dout), *in = check_read(c, &t->in);
    const double *mean = check_read(c, &t->mean), *rstd = check_read(c, &t->rstd);
    const double *weight = check_read(c, &t->weight);
    double *din = check_doubles(c, count), *din_size = check_doubles(c, count);
    double *dweight_size = check_doubles(c, columns), *dbias_size = check_doubles(c, columns);
    for (int64_t i = 0; i < columns; i++) {
        dweight_size[i] = fabs(t->dweight_before[i]);
        dbias_size[i] = fabs(t->dbias_before[i]);
    }
    for (int64_t r = 0; r < rows; r++) {
        const double *x = in + r * columns, *dy = dout + r * columns;
        double sum_d = 0, sum_dh = 0, size_d = 0, size_dh = 0;
        for (int64_t i = 0; i < columns; i++) {
            double h = (x[i] - mean[r]) * rstd[r], h_size = (fabs(x[i]) + fabs(mean[r])) * rstd[r];
            sum_d += dy[i] * weight[i];
            sum_dh += dy[i] * weight[i] * h;
            size_d += fabs(dy[i] * weight[i]);
            size_dh += fabs(dy[i] * weight[i]) * h_size;
            t->dweight_before[i] += dy[i] * h;
            t->dbias_before[i] += dy[i];
            dweight_size[i] += fabs(dy[i]) * h_size;
            dbias_size[i] += fabs(dy[i]);
        }
        for (int64_t i = 0; i < columns; i++) {
            int64_t at = r * columns + i;
            double n = (double)columns, more = t->dresidual_before ? t->dresidual_before[at] : 0;
            double h = (x[i] - mean[r]) * rstd[r], h_size = (fabs(x[i]) + fabs(mean[r])) * rstd[r];
            din[at] = rstd[r] * (dy[i] * weight[i] - sum_d / n - h * sum_dh / n) + more;
            din_size[at] =
                rstd[r] * (fabs(dy[i] * weight[i]) + (size_d + h_size * size_dh) / n) + fabs(more);
        }
    }
    check_close(c, "layernorm_backward", &t->din, din, din_size);
    if (t->lower.data) check_close(c, "layernorm_backward", &t->lower, din, din_size);
    check_close(c, "layernorm_dweight", &t->dweight, t->dweight_before, dweight_size);
    check_close(c, "layernorm_dweight", &t->dbias, t->dbias_before, dbias_size);
}

struct backward_shape {
    int64_t rows, columns;
    enum dtype dout, in, din, parameter;
    enum { NO_RESIDUAL, RESIDUAL, RESIDUAL_IS_DIN } residual;
    enum { NO_LOWER, LOWER_BF16, LOWER_F16 } lower;
};

static const struct backward_shape backward_shapes[] = {
    {26, 40, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32, NO_RESIDUAL, NO_LOWER},
    {1, 1, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32, RESIDUAL, NO_LOWER},
    {77, 72, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32, RESIDUAL_IS_DIN, NO_LOWER},
    {154, 1100, DTYPE_BF16, DTYPE_F32, DTYPE_F32, DTYPE_F32, RESIDUAL_IS_DIN, LOWER_BF16},
    {33, 72, DTYPE_F16, DTYPE_F32, DTYPE_F32, DTYPE_F32, RESIDUAL, LOWER_F16},
    {77, 72, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, RESIDUAL_IS_DIN, NO_LOWER},
    {65, 33, DTYPE_F16, DTYPE_F16, DTYPE_F16, DTYPE_F16, RESIDUAL, NO_LOWER},
    {32, 513, DTYPE_F32, DTYPE_BF16, DTYPE_F32, DTYPE_BF16, NO_RESIDUAL, LOWER_BF16},
    /* Sizes around the capacity of a warp and a block of the CUDA kernels. */
    {17, 256, DTYPE_BF16, DTYPE_F32, DTYPE_F32, DTYPE_F32, RESIDUAL_IS_DIN, LOWER_BF16},
    {35, 264, DTYPE_F32, DTYPE_F16, DTYPE_F16, DTYPE_F32, RESIDUAL, LOWER_F16},
    {3, 4096, DTYPE_F16, DTYPE_F16, DTYPE_F16, DTYPE_F16, RESIDUAL_IS_DIN, NO_LOWER},
    {3, 4104, DTYPE_F16, DTYPE_F32, DTYPE_F32, DTYPE_F16, RESIDUAL_IS_DIN, LOWER_F16},
    {1, 768, DTYPE_BF16, DTYPE_F32, DTYPE_F32, DTYPE_F32, RESIDUAL_IS_DIN, LOWER_BF16},
    {18, 1600, DTYPE_BF16, DTYPE_F32, DTYPE_F32, DTYPE_F32, RESIDUAL, LOWER_BF16},
    {2, 2560, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32, RESIDUAL, LOWER_F16},
    {5, 2568, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, NO_RESIDUAL, NO_LOWER},
    {19, 40, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, DTYPE_F32, RESIDUAL, NO_LOWER},
    /* A gradient of zero: values after the last column are larger. */
    {9, 1, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32, NO_RESIDUAL, NO_LOWER},
    /* Enough rows for larger groups of them. */
    {16390, 8, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32, NO_RESIDUAL, NO_LOWER},
};
#define EACH_BACKWARD(s) (size_t s = 0; s < sizeof backward_shapes / sizeof *backward_shapes; s++)

/* Statistics as a forward pass would save them. */
static void statistics(struct check *c, struct backward_tensors *t) {
    int64_t rows = tensor_rows(&t->in), columns = tensor_columns(&t->in);
    double *in = check_read(c, &t->in), *mean = check_doubles(c, rows);
    double *rstd = check_doubles(c, rows);
    for (int64_t r = 0; r < rows; r++) {
        mean[r] = mean_of(in + r * columns, columns, false);
        rstd[r] = rstd_of(in + r * columns, columns);
    }
    t->mean = check_tensor(c, CHECK_READ, DTYPE_F32, rows, 0, mean);
    t->rstd = check_tensor(c, CHECK_READ, DTYPE_F32, rows, 0, rstd);
}

static void run_backward(struct check *c, struct backward_tensors *t, bool with_residual) {
    struct amax *amax = check_amax(c, 0, false);
    double *sums_before = t->sums.data ? check_read(c, &t->sums) : NULL;
    CHECK_OP(c, layernorm_backward, .din = &t->din, .din_lower = t->lower.data ? &t->lower : NULL,
             .dweight = &t->dweight, .dbias = &t->dbias, .dout = &t->dout, .in = &t->in,
             .mean = t->mean.data, .rstd = t->rstd.data, .weight = &t->weight,
             .dresidual = with_residual ? &t->dresidual : NULL, .track_amax = amax,
             .column_sums = sums_before ? &t->sums : NULL);
    if (!c->verify) return;
    const struct tensor *below = t->lower.data ? &t->lower : &t->din;
    check_amax_covers(c, amax, 0, false, below);
    if (sums_before) check_column_sums(c, &t->sums, sums_before, below);
}

static void make_backward(struct check *c, const struct backward_shape *s,
                          struct backward_tensors *t) {
    int64_t rows = s->rows, columns = s->columns;
    *t = (struct backward_tensors){
        .dout = check_normal(c, s->dout, rows, columns, 1.0),
        .in = check_normal(c, s->in, rows, columns, 2.0),
        .weight = check_normal(c, DTYPE_F32, columns, 0, 1.0),
        .dweight = check_sum(c, s->parameter, columns, 0),
        .dbias = check_sum(c, s->parameter, columns, 0),
    };
    statistics(c, t);
    /* Only some cases have one: the first norm has no residual gradient below it. */
    if (s->rows != 26) t->sums = check_sum(c, s->parameter, columns, 0);
    if (s->residual == RESIDUAL) t->dresidual = check_normal(c, s->din, rows, columns, 1.0);
    if (s->residual == RESIDUAL_IS_DIN) t->dresidual = check_sum(c, s->din, rows, columns);
    t->din = s->residual == RESIDUAL_IS_DIN ? t->dresidual : check_output(c, s->din, rows, columns);
    enum dtype lower = s->lower == LOWER_BF16 ? DTYPE_BF16 : DTYPE_F16;
    if (s->lower != NO_LOWER) t->lower = check_output(c, lower, rows, columns);
    t->dweight_before = check_read(c, &t->dweight);
    t->dbias_before = check_read(c, &t->dbias);
    if (s->residual != NO_RESIDUAL) t->dresidual_before = check_read(c, &t->dresidual);
}

static void backward(struct check *c, const void *given) {
    const struct backward_shape *s = given;
    struct backward_tensors t;
    make_backward(c, s, &t);
    run_backward(c, &t, s->residual != NO_RESIDUAL);
    if (c->verify) verify_backward(c, &t);
}

Test(layernorm, backward) {
    for
        EACH_BACKWARD(s) check_everywhere(backward, &backward_shapes[s]);
}

static void unaligned(struct check *c, const void *given) {
    const int64_t rows = 5, columns = 48;
    const int odd = *(const int *)given; /* index of the tensor */
    struct tensor places[7];
    for (int i = 0; i < 7; i++) {
        enum dtype dtype = i % 2 ? DTYPE_F32 : DTYPE_BF16;
        enum check_use use = i < 3 ? CHECK_WRITE : CHECK_READ;
        places[i] = i == odd            ? check_misaligned(c, use, dtype, rows, columns)
                    : use == CHECK_READ ? check_normal(c, dtype, rows, columns, 1.0)
                                        : check_sum(c, dtype, rows, columns);
    }
    struct tensor weight = check_normal(c, DTYPE_F32, columns, 0, 1.0);
    struct forward_tensors f = {.out = places[0],
                                .sum = places[1],
                                .in = places[4],
                                .residual = places[3],
                                .weight = weight,
                                .bias = check_normal(c, DTYPE_F32, columns, 0, 1.0),
                                .mean = check_output(c, DTYPE_F32, rows, 0),
                                .rstd = check_output(c, DTYPE_F32, rows, 0)};
    CHECK_OP(c, layernorm_forward, .out = &f.out, .sum = &f.sum, .mean = f.mean.data,
             .rstd = f.rstd.data, .in = &f.in, .residual = &f.residual, .weight = &f.weight,
             .bias = &f.bias, .epsilon = (float)EPSILON);
    if (c->verify) verify_forward(c, &f, check_read(c, &f.sum));
    struct backward_tensors b = {.din = places[1],
                                 .lower = places[2],
                                 .dweight = check_sum(c, DTYPE_F32, columns, 0),
                                 .dbias = check_sum(c, DTYPE_F32, columns, 0),
                                 .dout = places[6],
                                 .in = places[5],
                                 .weight = weight,
                                 .dresidual = places[3]};
    statistics(c, &b);
    b.sums = check_sum(c, DTYPE_F32, columns, 0);
    b.dweight_before = check_read(c, &b.dweight);
    b.dbias_before = check_read(c, &b.dbias);
    b.dresidual_before = check_read(c, &b.dresidual);
    run_backward(c, &b, true);
    if (c->verify) verify_backward(c, &b);
}

Test(layernorm, unaligned) {
    for (int odd = 0; odd < 7; odd++) check_everywhere(unaligned, &odd);
}

/* Function for finite differences: sum(dout * layernorm(in)) + sum(dresidual * in). */
struct problem {
    int64_t rows, columns;
    double *in, *weight, *bias, *dout, *dresidual;
};

static double objective(const void *state) {
    const struct problem *p = state;
    double total = 0;
    for (int64_t r = 0; r < p->rows; r++) {
        const double *x = p->in + r * p->columns;
        double mean = mean_of(x, p->columns, false), rstd = rstd_of(x, p->columns);
        for (int64_t i = 0; i < p->columns; i++) {
            int64_t at = r * p->columns + i;
            double y = (x[i] - mean) * rstd * p->weight[i] + p->bias[i];
            total += p->dout[at] * y + p->dresidual[at] * x[i];
        }
    }
    return total;
}

static double *derivatives(struct check *c, const struct problem *p, double *x, int64_t count,
                           double *plus) {
    double *result = check_doubles(c, count);
    for (int64_t i = 0; i < count; i++)
        result[i] = check_derivative(objective, p, &x[i]) + (plus ? plus[i] : 0);
    return result;
}

static void differences(struct check *c, const void *given) {
    (void)given;
    const struct backward_shape s = {5, 24, .residual = RESIDUAL};
    struct backward_tensors t;
    make_backward(c, &s, &t);
    run_backward(c, &t, true);
    if (!c->verify) return;
    struct problem p = {s.rows,
                        s.columns,
                        check_read(c, &t.in),
                        check_read(c, &t.weight),
                        check_doubles(c, s.columns),
                        check_read(c, &t.dout),
                        t.dresidual_before};
    check_close(c, "differences", &t.din, derivatives(c, &p, p.in, s.rows * s.columns, NULL), NULL);
    double *dweight = derivatives(c, &p, p.weight, s.columns, t.dweight_before);
    check_close(c, "differences", &t.dweight, dweight, NULL);
    double *dbias = derivatives(c, &p, p.bias, s.columns, t.dbias_before);
    check_close(c, "differences", &t.dbias, dbias, NULL);
}

Test(layernorm, finite_differences) {
    check_everywhere(differences, NULL);
}

static void golden_forward(struct check *c, const char *group, bool with_residual) {
    char name[8][64];
    static const char *const fields[] = {"in",  "residual", "weight", "bias",
                                         "out", "sum",      "mean",   "rstd"};
    for (int i = 0; i < 8; i++) snprintf(name[i], sizeof name[i], "%s.%s", group, fields[i]);
    struct tensor in = golden_tensor(c, CHECK_READ, name[0]), residual = in;
    if (with_residual) residual = golden_tensor(c, CHECK_READ, name[1]);
    struct tensor weight = golden_tensor(c, CHECK_READ, name[2]);
    struct tensor bias = golden_tensor(c, CHECK_READ, name[3]);
    struct tensor out = check_output(c, DTYPE_F32, tensor_rows(&in), tensor_columns(&in));
    struct tensor sum = check_output(c, DTYPE_F32, tensor_rows(&in), tensor_columns(&in));
    struct tensor mean = check_output(c, DTYPE_F32, tensor_rows(&in), 0);
    struct tensor rstd = check_output(c, DTYPE_F32, tensor_rows(&in), 0);
    CHECK_OP(c, layernorm_forward, .out = &out, .sum = with_residual ? &sum : NULL,
             .mean = mean.data, .rstd = rstd.data, .in = &in,
             .residual = with_residual ? &residual : NULL, .weight = &weight, .bias = &bias,
             .epsilon = (float)EPSILON);
    if (!c->verify) return;
    golden_close(c, "golden_sum", &out, name[4], NULL);
    if (with_residual) golden_close(c, "golden", &sum, name[5], NULL);
    golden_close(c, "golden_sum", &mean, name[6], NULL);
    golden_close(c, "golden_sum", &rstd, name[7], NULL);
}

static void golden_backward(struct check *c, const char *group, bool with_residual) {
    char name[9][64];
    static const char *const fields[] = {"dout",      "sum", "weight",  "mean", "rstd",
                                         "dresidual", "din", "dweight", "dbias"};
    for (int i = 0; i < 9; i++) snprintf(name[i], sizeof name[i], "%s.%s", group, fields[i]);
    struct backward_tensors t = {
        .dout = golden_tensor(c, CHECK_READ, name[0]),
        .in = golden_tensor(c, CHECK_READ, name[1]),
        .weight = golden_tensor(c, CHECK_READ, name[2]),
        .mean = golden_tensor(c, CHECK_READ, name[3]),
        .rstd = golden_tensor(c, CHECK_READ, name[4]),
    };
    if (with_residual) t.dresidual = golden_tensor(c, CHECK_READ, name[5]);
    int64_t rows = tensor_rows(&t.in), columns = tensor_columns(&t.in);
    double *zeros = check_doubles(c, columns);
    t.din = check_output(c, DTYPE_F32, rows, columns);
    t.dweight = check_tensor(c, CHECK_WRITE, DTYPE_F32, columns, 0, zeros);
    t.dbias = check_tensor(c, CHECK_WRITE, DTYPE_F32, columns, 0, zeros);
    run_backward(c, &t, with_residual);
    if (!c->verify) return;
    golden_close(c, "golden_sum", &t.din, name[6], NULL);
    golden_close(c, "golden_sum", &t.dweight, name[7], NULL);
    golden_close(c, "golden_sum", &t.dbias, name[8], NULL);
}

static void golden(struct check *c, const void *given) {
    (void)given;
    golden_forward(c, "layernorm", false);
    golden_forward(c, "layernorm_residual", true);
    golden_backward(c, "layernorm", false);
    golden_backward(c, "layernorm_residual", true);
}

Test(layernorm, golden) {
    check_everywhere(golden, NULL);
}
