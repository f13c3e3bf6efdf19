#include <criterion/criterion.h>
#include <math.h>

#include "test/kernels/bench.h"
#include "test/kernels/check.h"

static const double EPSILON = 1e-6f;

struct shape {
    int64_t rows, more; /* extra columns after the heads */
    int64_t size;
    int heads, kv_heads;
    enum dtype dtype;
    enum dtype parameter; /* dtype of the weights' gradients */
    bool odd;             /* the rows begin at an odd offset */
    int64_t length;       /* length of a sequence, whose heads get rope; 0: no rope */
};

static const struct shape shapes[] = {
    {1, 0, 2, 1, 1, DTYPE_F32, DTYPE_F32, false, 0},
    {26, 24, 24, 6, 1, DTYPE_F32, DTYPE_F32, false, 13},
    {77, 128, 64, 9, 3, DTYPE_BF16, DTYPE_BF16, false, 77},
    {33, 80, 80, 2, 2, DTYPE_F16, DTYPE_F32, false, 0},
    {9, 7, 128, 4, 2, DTYPE_BF16, DTYPE_F32, false, 0},
    {40, 128, 128, 2, 1, DTYPE_BF16, DTYPE_F32, true, 20},
    {5, 256, 256, 3, 1, DTYPE_F16, DTYPE_F16, false, 5}, /* a warp's width */
    {19, 3, 7, 3, 3, DTYPE_BF16, DTYPE_F32, false, 0},
    {33, 0, 128, 4, 0, DTYPE_BF16, DTYPE_F32, false, 0}, /* no keys */
    {77, 0, 40, 6, 0, DTYPE_F32, DTYPE_F32, false, 0},
    {9000, 8, 8, 1, 1, DTYPE_F32, DTYPE_F32, false, 0}, /* so many that groups of rows grow */
};
#define EACH_SHAPE(s) (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)

static double rstd_of(const double *x, int64_t size) {
    double sum = 0;
    for (int64_t i = 0; i < size; i++) sum += x[i] * x[i];
    return 1 / sqrt(sum / (double)size + EPSILON);
}

/* Applies rope to a head, and to the sizes of its summands. */
static void turn(double *x, double *x_size, const double *angles, const struct shape *s,
                 int64_t row, double sign) {
    int64_t half = s->size / 2;
    if (!s->length) return;
    angles += row % s->length * s->size;
    for (int64_t j = 0; j < half; j++) {
        double cosine = angles[j], sine = sign * angles[half + j], low = x[j], high = x[j + half];
        double low_size = x_size[j], high_size = x_size[j + half];
        x[j] = low * cosine - high * sine;
        x[j + half] = high * cosine + low * sine;
        x_size[j] = low_size * fabs(cosine) + high_size * fabs(sine);
        x_size[j + half] = high_size * fabs(cosine) + low_size * fabs(sine);
    }
}

struct operands {
    struct tensor angles; /* no data if rope is off */
    double *turns;        /* its values on the host */
    struct tensor inout, raw, q_weight, k_weight, dq_weight, dk_weight;
    int64_t columns, heads; /* columns of a row of inout; heads of q and k together */
};

static struct operands make(struct check *c, const struct shape *s) {
    int64_t heads = s->heads + s->kv_heads, columns = heads * s->size + s->more;
    struct operands o = {.columns = columns, .heads = heads};
    o.inout = s->odd ? check_misaligned(c, CHECK_WRITE, s->dtype, s->rows, columns)
                     : check_sum(c, s->dtype, s->rows, columns);
    if (s->length) {
        o.turns = check_doubles(c, s->length * s->size);
        for (int64_t i = 0; i < s->length * s->size; i++) o.turns[i] = (float)sin((double)i);
        o.angles = check_tensor(c, CHECK_READ, DTYPE_F32, s->length, s->size, o.turns);
    }
    o.q_weight = check_normal(c, DTYPE_F32, s->size, 0, 1.0);
    o.k_weight = check_normal(c, DTYPE_F32, s->size, 0, 1.0);
    return o;
}

static const double *weight_of(const struct shape *s, const double *q, const double *k,
                               int64_t head) {
    return head < s->heads ? q : k;
}

/* Columns after the heads do not change. */
static void forward_at(struct check *c, const struct shape *s, bool given) {
    struct operands o = make(c, s);
    const int32_t *host = NULL, *positions = NULL;
    if (given) positions = check_tokens(c, s->rows, (int32_t)s->length, &host);
    o.raw = check_output(c, s->dtype, s->rows, o.heads * s->size);
    double *out = check_read(c, &o.inout), *raw = check_doubles(c, s->rows * o.heads * s->size);
    double *q = check_read(c, &o.q_weight), *k = check_read(c, &o.k_weight);
    CHECK_OP(c, qk_norm_forward, .inout = &o.inout, .raw = &o.raw, .q_weight = &o.q_weight,
             .k_weight = &o.k_weight, .angles = o.turns ? &o.angles : NULL, .positions = positions,
             .sequence_length = s->length, .heads = s->heads, .kv_heads = s->kv_heads,
             .epsilon = (float)EPSILON);
    if (!c->verify) return;
    double *size = check_doubles(c, s->rows * o.columns);
    for (int64_t i = 0; i < s->rows * o.columns; i++) size[i] = fabs(out[i]);
    for (int64_t i = 0; i < s->rows * o.heads; i++) {
        double *x_size = size + i / o.heads * o.columns + i % o.heads * s->size;
        double *x = out + i / o.heads * o.columns + i % o.heads * s->size;
        double rstd = rstd_of(x, s->size);
        for (int64_t j = 0; j < s->size; j++) {
            raw[i * s->size + j] = x[j];
            x[j] *= rstd * weight_of(s, q, k, i % o.heads)[j];
            x_size[j] = fabs(x[j]);
        }
        turn(x, x_size, o.turns, s, given ? host[i / o.heads] : i / o.heads, 1);
    }
    check_close(c, "qk_norm_forward", &o.inout, out, size);
    size_t bytes = (size_t)(s->rows * o.heads * s->size) * sizeof *raw;
    cr_expect_arr_eq(check_read(c, &o.raw), raw, bytes);
}

static void forward(struct check *c, const void *given) {
    forward_at(c, given, false);
}

static void forward_at_positions(struct check *c, const void *given) {
    forward_at(c, given, true);
}

Test(qk_norm, forward) {
    for
        EACH_SHAPE(s) check_everywhere(forward, &shapes[s]);
    for
        EACH_SHAPE(s) if (shapes[s].length) check_everywhere(forward_at_positions, &shapes[s]);
}

struct gradients {
    double *din, *din_size;         /* [D] of one head */
    double *dweight, *dweight_size; /* [D] */
    const double *in, *weight;
};

/* With d = dout * weight and h = in * rstd: rstd * (d - h * mean(d * h)). The sizes use absolute
 * values in the same formula; on entry, din_size holds the size of dout. */
static void reference(const struct gradients *g, int64_t size) {
    double rstd = rstd_of(g->in, size), sum = 0, sum_size = 0;
    for (int64_t i = 0; i < size; i++) {
        double h = g->in[i] * rstd, dh = g->weight[i] * h;
        sum += g->din[i] * dh, sum_size += g->din_size[i] * fabs(dh);
        g->dweight[i] += g->din[i] * h;
        g->dweight_size[i] += g->din_size[i] * fabs(h);
    }
    for (int64_t i = 0; i < size; i++) {
        double w = g->weight[i], h = g->in[i] * rstd, n = (double)size;
        g->din[i] = rstd * (g->din[i] * w - h * sum / n);
        g->din_size[i] = rstd * (g->din_size[i] * fabs(w) + fabs(h) * sum_size / n);
    }
}

static void backward(struct check *c, const void *given) {
    const struct shape *s = given;
    struct operands o = make(c, s);
    o.raw = check_normal(c, s->dtype, s->rows, o.heads * s->size, 2.0);
    o.dq_weight = check_sum(c, s->parameter, s->size, 0);
    o.dk_weight = check_sum(c, s->parameter, s->size, 0);
    double *din = check_read(c, &o.inout), *din_size = check_read(c, &o.inout);
    double *dweights[2] = {check_read(c, &o.dq_weight), check_read(c, &o.dk_weight)};
    double *sizes[2] = {check_read(c, &o.dq_weight), check_read(c, &o.dk_weight)};
    double *q = check_read(c, &o.q_weight), *k = check_read(c, &o.k_weight);
    double *raw = check_read(c, &o.raw);
    CHECK_OP(c, qk_norm_backward, .dinout = &o.inout, .dq_weight = &o.dq_weight,
             .dk_weight = s->kv_heads ? &o.dk_weight : NULL, .raw = &o.raw, .q_weight = &o.q_weight,
             .k_weight = &o.k_weight, .angles = o.turns ? &o.angles : NULL,
             .sequence_length = s->length, .heads = s->heads, .kv_heads = s->kv_heads,
             .epsilon = (float)EPSILON);
    if (!c->verify) return;
    for (int64_t i = 0; i < s->rows * o.columns; i++) din_size[i] = fabs(din_size[i]);
    for (int64_t i = 0; i < 2 * s->size; i++)
        sizes[i / s->size][i % s->size] = fabs(sizes[i / s->size][i % s->size]);
    for (int64_t i = 0; i < s->rows * o.heads; i++) {
        int64_t at = i / o.heads * o.columns + i % o.heads * s->size;
        bool key = i % o.heads >= s->heads;
        struct gradients g = {din + at,   din_size + at,     dweights[key],
                              sizes[key], raw + i * s->size, weight_of(s, q, k, i % o.heads)};
        turn(g.din, g.din_size, o.turns, s, i / o.heads, -1);
        reference(&g, s->size);
    }
    check_close(c, "qk_norm_backward", &o.inout, din, din_size);
    check_close(c, "qk_norm_dweight", &o.dq_weight, dweights[0], sizes[0]);
    check_close(c, "qk_norm_dweight", &o.dk_weight, dweights[1], sizes[1]);
}

Test(qk_norm, backward) {
    for
        EACH_SHAPE(s) check_everywhere(backward, &shapes[s]);
}

/* weight_offset gives the bits of weights that hold the sum. */
static void offset(struct check *c, const void *given) {
    const struct shape *s = given;
    struct operands o = make(c, s);
    const int64_t n = tensor_columns(&o.inout);
    struct tensor weights[2][2] = {{o.q_weight, o.k_weight}}, out[2], din[2], dq[2], dk[2];
    double *x = check_read(c, &o.inout), *zeros = check_doubles(c, s->size);
    for (int k = 0; k < 2; k++) {
        double *sums = check_read(c, &weights[0][k]);
        for (int64_t i = 0; i < s->size; i++) sums[i] = (float)(sums[i] + 1);
        weights[1][k] = check_tensor(c, CHECK_READ, DTYPE_F32, s->size, 0, sums);
    }
    for (int k = 0; k < 2; k++) {
        struct tensor raw = check_output(c, s->dtype, s->rows, o.heads * s->size);
        out[k] = check_tensor(c, CHECK_WRITE, s->dtype, s->rows, n, x);
        din[k] = check_tensor(c, CHECK_WRITE, s->dtype, s->rows, n, x);
        dq[k] = check_tensor(c, CHECK_WRITE, s->parameter, s->size, 0, zeros);
        dk[k] = check_tensor(c, CHECK_WRITE, s->parameter, s->size, 0, zeros);
        CHECK_OP(c, qk_norm_forward, .inout = &out[k], .raw = &raw, .q_weight = &weights[k][0],
                 .k_weight = &weights[k][1], .weight_offset = k == 0 ? 1 : 0,
                 .angles = o.turns ? &o.angles : NULL, .sequence_length = s->length,
                 .heads = s->heads, .kv_heads = s->kv_heads, .epsilon = (float)EPSILON);
        CHECK_OP(c, qk_norm_backward, .dinout = &din[k], .dq_weight = &dq[k],
                 .dk_weight = s->kv_heads ? &dk[k] : NULL, .raw = &raw, .q_weight = &weights[k][0],
                 .k_weight = &weights[k][1], .weight_offset = k == 0 ? 1 : 0,
                 .angles = o.turns ? &o.angles : NULL, .sequence_length = s->length,
                 .heads = s->heads, .kv_heads = s->kv_heads, .epsilon = (float)EPSILON);
    }
    check_equal(c, "out", &out[0], check_read(c, &out[1]));
    check_equal(c, "din", &din[0], check_read(c, &din[1]));
    check_equal(c, "dq_weight", &dq[0], check_read(c, &dq[1]));
    check_equal(c, "dk_weight", &dk[0], check_read(c, &dk[1]));
}

Test(qk_norm, weight_offset) {
    for
        EACH_SHAPE(s) check_everywhere(offset, &shapes[s]);
}

/* sum(dout * result) of one query head and one key head. */
enum { WIDTH = 6 };
struct problem {
    double in[2 * WIDTH], weight[2 * WIDTH], dout[2 * WIDTH];
};

static double objective(const void *state) {
    const struct problem *p = state;
    double total = 0;
    for (int i = 0; i < 2 * WIDTH; i++) {
        double rstd = rstd_of(p->in + i / WIDTH * WIDTH, WIDTH);
        total += p->dout[i] * p->in[i] * rstd * p->weight[i];
    }
    return total;
}

static void differences(struct check *c, const void *given) {
    (void)given;
    struct problem p;
    for (int i = 0; i < 2 * WIDTH; i++) {
        p.in[i] = (i + 1) * (i % 2 ? -0.25 : 0.5);
        p.weight[i] = 1 + 0.125 * i;
        p.dout[i] = i % 3 - 0.5;
    }
    double zeros[WIDTH] = {0}, expected[2 * WIDTH], expected_weight[2 * WIDTH];
    struct tensor raw = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 2 * WIDTH, p.in);
    struct tensor q = check_tensor(c, CHECK_READ, DTYPE_F32, WIDTH, 0, p.weight);
    struct tensor k = check_tensor(c, CHECK_READ, DTYPE_F32, WIDTH, 0, p.weight + WIDTH);
    struct tensor d = check_tensor(c, CHECK_WRITE, DTYPE_F32, 1, 2 * WIDTH, p.dout);
    struct tensor dq = check_tensor(c, CHECK_WRITE, DTYPE_F32, WIDTH, 0, zeros);
    struct tensor dk = check_tensor(c, CHECK_WRITE, DTYPE_F32, WIDTH, 0, zeros);
    CHECK_OP(c, qk_norm_backward, .dinout = &d, .dq_weight = &dq, .dk_weight = &dk, .raw = &raw,
             .q_weight = &q, .k_weight = &k, .heads = 1, .kv_heads = 1, .epsilon = (float)EPSILON);
    if (!c->verify) return;
    for (int i = 0; i < 2 * WIDTH; i++) {
        expected[i] = check_derivative(objective, &p, &p.in[i]);
        expected_weight[i] = check_derivative(objective, &p, &p.weight[i]);
    }
    check_close(c, "differences", &d, expected, NULL);
    check_close(c, "differences", &dq, expected_weight, NULL);
    check_close(c, "differences", &dk, expected_weight + WIDTH, NULL);
}

Test(qk_norm, finite_differences) {
    check_everywhere(differences, NULL);
}

static size_t time_forward(struct bench *b, int variant) {
    struct tensor qkv = bench_rows(b, (enum dtype)variant, BENCH_QKV);
    struct tensor raw = bench_rows(b, (enum dtype)variant, BENCH_QK);
    struct tensor angles = arena_tensor(&b->arena, DTYPE_F32, BENCH_T, BENCH_HEAD_SIZE);
    struct tensor weight = arena_tensor(&b->arena, DTYPE_F32, BENCH_HEAD_SIZE, 0);
    OP(&b->be, qk_norm_forward, .inout = &qkv, .raw = &raw, .q_weight = &weight,
       .k_weight = &weight, .angles = &angles, .sequence_length = BENCH_T, .heads = BENCH_HEADS,
       .kv_heads = BENCH_KV_HEADS, .epsilon = 1e-6f);
    return 3 * tensor_bytes(&raw);
}
BENCH(qk_norm, forward_with_rope, bench_dtypes, time_forward)

static size_t time_backward(struct bench *b, int variant) {
    struct tensor dqkv = bench_rows(b, (enum dtype)variant, BENCH_QKV);
    struct tensor raw = bench_rows(b, (enum dtype)variant, BENCH_QK);
    struct tensor angles = arena_tensor(&b->arena, DTYPE_F32, BENCH_T, BENCH_HEAD_SIZE);
    struct tensor weight = arena_tensor(&b->arena, DTYPE_F32, BENCH_HEAD_SIZE, 0);
    struct tensor dq = arena_tensor(&b->arena, DTYPE_F32, BENCH_HEAD_SIZE, 0);
    struct tensor dk = arena_tensor(&b->arena, DTYPE_F32, BENCH_HEAD_SIZE, 0);
    OP(&b->be, qk_norm_backward, .dinout = &dqkv, .dq_weight = &dq, .dk_weight = &dk, .raw = &raw,
       .q_weight = &weight, .k_weight = &weight, .angles = &angles, .sequence_length = BENCH_T,
       .heads = BENCH_HEADS, .kv_heads = BENCH_KV_HEADS, .epsilon = 1e-6f);
    return 3 * tensor_bytes(&raw);
}
BENCH(qk_norm, backward, bench_dtypes, time_backward)
