/* attention_backward on a GPU's tensor cores: 16 bits, heads of 64, 128 and 256 values, fp32 as
 * TF32, heads of 64 and 128; and lengths around the edges of its tiles (64 and 128) and fragments
 * (8 and 16).
 *
 * The saved results of the forward pass come from its rounded fp64 reference, not from the
 * operation. So only the backward pass is tested, and it is exact for these inputs. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "data/util/random.h"
#include "test/device.h"
#include "test/kernels/check.h"
#include "test/kernels/qkv_row.h"

struct shape {
    int64_t batch, length, heads, width; /* B, T, H, D */
    enum dtype dtype;
    double spread;    /* standard deviation of q, k, v */
    int64_t kv_heads; /* H_kv; 0: same as H */
};

enum { LENGTH_MAX = 400, WIDTH_MAX = 256 };

/* Host data of a test: values that are exact in the dtype, or in fp32. */
struct host {
    const struct shape *shape;
    struct qkv_row row;
    double roundoff; /* of P and dS */
    double *qkv, *dout, *out, *lse, *dqkv, *size;
};

/* One query head and its inputs. Rows of q, k, v and their gradients are `stride` apart, those
 * of out and dout `out_stride`. */
struct head {
    int64_t length, width, stride, out_stride;
    double scale, roundoff;
    double *q, *k, *v, *dout, *out, *lse, *dq, *dk, *dv, *dq_size, *dk_size, *dv_size;
};

static struct head head_of(const struct host *host, int64_t n) {
    const struct shape *s = host->shape;
    struct qkv_row row = host->row;
    int64_t first = n / s->heads * s->length, h = n % s->heads, at = first * row.columns;
    int64_t q = at + h * s->width, k = at + key_column(row, h), v = at + value_column(row, h);
    int64_t out_at = first * row.q_columns + h * s->width;
    return (struct head){.length = s->length,
                         .width = s->width,
                         .stride = row.columns,
                         .out_stride = row.q_columns,
                         .scale = 1 / sqrt((double)s->width),
                         .roundoff = host->roundoff,
                         .q = host->qkv + q,
                         .k = host->qkv + k,
                         .v = host->qkv + v,
                         .dout = host->dout + out_at,
                         .out = host->out + out_at,
                         .lse = host->lse + n * s->length,
                         .dq = host->dqkv + q,
                         .dk = host->dqkv + k,
                         .dv = host->dqkv + v,
                         .dq_size = host->size + q,
                         .dk_size = host->size + k,
                         .dv_size = host->size + v};
}

static double dot(const double *a, const double *b, int64_t count, double *size) {
    double sum = 0;
    *size = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += a[i] * b[i];
        *size += fabs(a[i] * b[i]);
    }
    return sum;
}

static void forward_row(const struct head *h, int64_t i, enum dtype dtype) {
    double s[LENGTH_MAX], out[WIDTH_MAX] = {0}, size, max = -INFINITY, sum = 0;
    for (int64_t j = 0; j <= i; j++) {
        s[j] = h->scale * dot(h->q + i * h->stride, h->k + j * h->stride, h->width, &size);
        max = fmax(max, s[j]);
    }
    for (int64_t j = 0; j <= i; j++) sum += exp(s[j] - max);
    h->lse[i] = check_round(max + log(sum), DTYPE_F32);
    for (int64_t j = 0; j <= i; j++)
        for (int64_t d = 0; d < h->width; d++)
            out[d] += exp(s[j] - max) / sum * h->v[j * h->stride + d];
    for (int64_t d = 0; d < h->width; d++)
        h->out[i * h->out_stride + d] = check_round(out[d], dtype);
}

/* Returns the uncertainty of a value of P or dS that is off by `arithmetic` 2^-24 and then
 * rounded, in units of attention_backward_mma. Below the smallest normal number,
 * which bf16 shares with fp32, the rounding error is that of the normal number. */
static double uncertain(double value, double arithmetic_size, double roundoff, enum dtype dtype) {
    const struct tolerance *lower = tolerance_of("attention_backward_mma");
    double least = dtype == DTYPE_F16 ? 0x1p-14 : 0x1p-126, units = roundoff * 0x1p24;
    return (fmax(fabs(value), least) * units + 4 * arithmetic_size) / lower->arithmetic[dtype];
}

/* Adds the contribution of query i and key j to the gradients and to their uncertainty: an
 * absolute error x of a score is a relative error x of P = exp(S - lse). */
static void backward_pair(const struct head *h, int64_t i, int64_t j, double delta,
                          double delta_size, enum dtype dtype) {
    int64_t qi = i * h->stride, kj = j * h->stride, oi = i * h->out_stride;
    double size, dp_size, s = h->scale * dot(h->q + qi, h->k + kj, h->width, &size);
    double p = exp(s - h->lse[i]), dp = dot(h->dout + oi, h->v + kj, h->width, &dp_size);
    double ds = p * (dp - delta), unsure = 1 + size * h->scale + fabs(h->lse[i]);
    double p_off = uncertain(p, p * unsure, h->roundoff, dtype);
    double ds_size = p * (dp_size + delta_size) * unsure;
    double ds_off = uncertain(ds, ds_size, h->roundoff, dtype) * h->scale;
    for (int64_t d = 0; d < h->width; d++) {
        double q = h->q[qi + d], k = h->k[kj + d], dout = h->dout[oi + d];
        h->dq[qi + d] += ds * h->scale * k;
        h->dq_size[qi + d] += ds_off * fabs(k);
        h->dk[kj + d] += ds * h->scale * q;
        h->dk_size[kj + d] += ds_off * fabs(q);
        h->dv[kj + d] += p * dout;
        h->dv_size[kj + d] += p_off * fabs(dout);
    }
}

static double *random_values(struct check *c, int64_t count, enum dtype dtype, double spread) {
    double *values = check_doubles(c, count);
    uint64_t stream = c->stream++;
    for (int64_t i = 0; i < count; i++)
        values[i] = check_operand(c, dtype, spread * random_normal(11, stream, (uint64_t)i));
    return values;
}

static struct host prepare(struct check *c, const struct shape *s) {
    struct qkv_row row = qkv_row(s->heads, s->kv_heads, s->width);
    int64_t rows = s->batch * s->length;
    struct host host = {.shape = s,
                        .row = row,
                        .roundoff = check_operand_roundoff(c, s->dtype),
                        .qkv = random_values(c, rows * row.columns, s->dtype, s->spread),
                        .dout = random_values(c, rows * row.q_columns, s->dtype, 1),
                        .out = check_doubles(c, rows * row.q_columns),
                        .lse = check_doubles(c, rows * s->heads),
                        .dqkv = check_doubles(c, rows * row.columns),
                        .size = check_doubles(c, rows * row.columns)};
    for (int64_t n = 0; n < s->batch * s->heads; n++) {
        struct head h = head_of(&host, n);
        for (int64_t i = 0; i < s->length; i++) forward_row(&h, i, s->dtype);
    }
    return host;
}

static void reference(const struct host *host) {
    const struct shape *s = host->shape;
    for (int64_t n = 0; n < s->batch * s->heads; n++) {
        struct head h = head_of(host, n);
        for (int64_t i = 0; i < s->length; i++) {
            double size,
                delta = dot(h.dout + i * h.out_stride, h.out + i * h.out_stride, h.width, &size);
            for (int64_t j = 0; j <= i; j++) backward_pair(&h, i, j, delta, size, s->dtype);
        }
    }
}

static struct tensor input(struct check *c, const struct shape *s, int64_t columns,
                           const double *values) {
    struct tensor flat =
        check_tensor(c, CHECK_READ, s->dtype, s->batch * s->length, columns, values);
    return check_rank3(flat, s->batch, s->length, columns);
}

static struct tensor run(struct check *c, const struct host *host) {
    const struct shape *s = host->shape;
    struct tensor qkv = input(c, s, host->row.columns, host->qkv);
    struct tensor dout = input(c, s, host->row.q_columns, host->dout);
    struct tensor out = input(c, s, host->row.q_columns, host->out);
    struct tensor lse =
        check_tensor(c, CHECK_READ, DTYPE_F32, s->batch * s->heads, s->length, host->lse);
    struct tensor flat = check_output(c, s->dtype, s->batch * s->length, host->row.columns);
    struct tensor dqkv = check_rank3(flat, s->batch, s->length, host->row.columns);
    struct amax *amax = check_amax(c, 0, false);
    CHECK_OP(c, attention_backward, .dqkv = &dqkv, .dout = &dout, .qkv = &qkv, .out = &out,
             .lse = lse.data, .scale = 1 / sqrt((double)s->width), .track_amax = amax,
             .heads = (int)s->heads, .kv_heads = (int)host->row.kv_heads);
    if (c->verify) check_amax_covers(c, amax, 0, false, &dqkv);
    return dqkv;
}

static void backward(struct check *c, const void *given) {
    struct host host = prepare(c, given);
    struct tensor dqkv = run(c, &host);
    if (!c->verify) return;
    reference(&host);
    check_close(c, "attention_backward_mma", &dqkv, host.dqkv, host.size);
}

static void backward_of(int64_t batch, int64_t length, int64_t heads, int64_t width) {
    for (int half = 0; half < 2; half++) {
        enum dtype dtype = half ? DTYPE_F16 : DTYPE_BF16;
        check_on_each_gpu(backward,
                          &(const struct shape){batch, length, heads, width, dtype, 1, 0});
    }
}

Test(attention_mma_backward, short_sequences) {
    const int64_t lengths[] = {1, 2, 15, 16, 17, 33, 63};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        backward_of(1, lengths[i], 2, 64);
        backward_of(1, lengths[i], 1, 128);
        backward_of(1, lengths[i], 1, 256);
    }
}

Test(attention_mma_backward, edges_of_tiles) {
    const int64_t lengths[] = {64, 65, 77, 127, 128, 129};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        backward_of(1, lengths[i], 1, 64);
        backward_of(1, lengths[i], 1, 128);
        backward_of(1, lengths[i], 1, 256);
    }
}

/* More tiles than there are stages, so that stages are reused. */
Test(attention_mma_backward, many_tiles) {
    check_on_each_gpu(backward, &(const struct shape){1, 390, 1, 64, DTYPE_BF16, 1, 0});
    check_on_each_gpu(backward, &(const struct shape){1, 385, 1, 64, DTYPE_F16, 1, 0});
    check_on_each_gpu(backward, &(const struct shape){1, 200, 1, 128, DTYPE_BF16, 1, 0});
    check_on_each_gpu(backward, &(const struct shape){1, 320, 1, 128, DTYPE_F16, 1, 0});
    check_on_each_gpu(backward, &(const struct shape){1, 270, 1, 256, DTYPE_F16, 1, 0});
}

Test(attention_mma_backward, batches_and_heads) {
    backward_of(3, 20, 5, 64);
    backward_of(2, 70, 3, 128);
    backward_of(2, 140, 2, 64);
}

/* Queries of one head follow those of another: heads of one tile and of several, fewer and more
 * tiles than there are stages, and keys that fewer tiles of queries see than others. */
Test(attention_mma_backward, grouped) {
    check_on_each_gpu(backward, &(const struct shape){1, 77, 9, 64, DTYPE_BF16, 1, 3});
    check_on_each_gpu(backward, &(const struct shape){2, 77, 14, 64, DTYPE_F16, 1, 2});
    check_on_each_gpu(backward, &(const struct shape){2, 33, 3, 128, DTYPE_F16, 1, 1});
    check_on_each_gpu(backward, &(const struct shape){1, 150, 4, 128, DTYPE_BF16, 1, 2});
    check_on_each_gpu(backward, &(const struct shape){1, 300, 4, 64, DTYPE_BF16, 1, 2});
    check_on_each_gpu(backward, &(const struct shape){1, 5, 2, 64, DTYPE_F16, 1, 1});
    check_on_each_gpu(backward, &(const struct shape){2, 150, 6, 256, DTYPE_BF16, 1, 2});
}
/* GPUs on which a block has 99 KB of shared memory. */
Test(attention_mma_backward, widest_in_100_KB) {
    const struct shape s = {1, 150, 2, 256, DTYPE_BF16, 1, 1};
    cr_assert_eq(check_on_gpu(86, 1, backward, &s), 1);
}

/* Scores of tens: P is 1 in places, 0 in others. */
Test(attention_mma_backward, steep) {
    check_on_each_gpu(backward, &(const struct shape){1, 100, 1, 64, DTYPE_F16, 2, 0});
    check_on_each_gpu(backward, &(const struct shape){1, 100, 1, 128, DTYPE_BF16, 2, 0});
}

static double *repeat(struct check *c, const double *values, int64_t count, int64_t times) {
    double *all = check_doubles(c, count * times);
    for (int64_t i = 0; i < count * times; i++) all[i] = values[i % count];
    return all;
}

/* The same sequence many times, whose gradients must have the same bits: dQ is added up over blocks
 * in order, whichever multiprocessor takes them, and in whichever wave. */
static void waves(struct check *c, const void *given) {
    const struct shape *many = given;
    const struct shape one = {1, many->length, many->heads, many->width, many->dtype, 1, 0};
    struct host host = prepare(c, &one), copies = host;
    int64_t rows = many->length, each = rows * host.row.columns, times = many->batch;
    copies.shape = many;
    copies.qkv = repeat(c, host.qkv, each, times);
    copies.dout = repeat(c, host.dout, rows * host.row.q_columns, times);
    copies.out = repeat(c, host.out, rows * host.row.q_columns, times);
    copies.lse = repeat(c, host.lse, rows * many->heads, times);
    struct tensor dqkv = run(c, &copies);
    if (!c->verify) return;
    reference(&host);
    struct tensor first = {dqkv.data, dqkv.dtype, 2, {rows, host.row.columns}};
    check_close(c, "attention_backward_mma", &first, host.dqkv, host.size);
    const double *values = check_read(c, &dqkv);
    for (int64_t i = each; i < times * each; i++)
        cr_assert(values[i] == values[i % each], "sequence %lld has other bits at %lld",
                  (long long)(i / each), (long long)(i % each));
}

/* On a GPU six blocks for each of 132 multiprocessors, which hold one or two; the emulated GPU has
 * four multiprocessors. */
Test(attention_mma_backward, several_waves) {
#ifdef EMULATED
    enum { BATCH = 4, LENGTH = 129 };
#else
    enum { BATCH = 66, LENGTH = 390 };
#endif
    if (test_device() == DEVICE_CPU) cr_skip_test("a CPU has no waves of blocks");
    check_on_each_gpu(waves, &(const struct shape){BATCH, LENGTH, 3, 64, DTYPE_BF16, 1, 0});
    check_on_each_gpu(waves, &(const struct shape){BATCH, LENGTH, 3, 128, DTYPE_F16, 1, 0});
}

/* The same in TF32, where heads of 64 have the tiles of 128 in 16 bits, and those of 128 of 256. */
Test(attention_mma_backward, tf32) {
    static const int64_t lengths[] = {1, 15, 17, 33, 63, 64, 65, 77, 127, 128, 129};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        check_tf32(backward, &(const struct shape){1, lengths[i], 1, 64, DTYPE_F32, 1, 0});
        check_tf32(backward, &(const struct shape){1, lengths[i], 1, 128, DTYPE_F32, 1, 0});
    }
    check_tf32(backward, &(const struct shape){1, 390, 1, 64, DTYPE_F32, 1, 0});
    check_tf32(backward, &(const struct shape){1, 270, 1, 128, DTYPE_F32, 1, 0});
    check_tf32(backward, &(const struct shape){3, 20, 5, 64, DTYPE_F32, 1, 0});
    check_tf32(backward, &(const struct shape){2, 77, 14, 64, DTYPE_F32, 1, 2});
    check_tf32(backward, &(const struct shape){2, 150, 6, 128, DTYPE_F32, 1, 2});
    check_tf32(backward, &(const struct shape){1, 100, 1, 64, DTYPE_F32, 2, 0});
    const struct shape wide = {1, 150, 2, 128, DTYPE_F32, 1, 1};
    cr_assert_eq(check_tf32_on_gpu(86, 1, backward, &wide), 1);
}

/* Inputs that TF32 does not hold are rounded, and an emulated GPU refuses others. One query that
 * sees one key, with P = 1 and dS = 0: its dV is dO. A spread of 0 makes q 0, else k is. */
static void rounds_inputs(struct check *c, const void *given) {
    const struct shape *s = given;
    const double ties[] = {1 + 0x1p-11, -1 - 0x1p-11, 1 + 0x1p-11 - 0x1p-23, 2 + 0x1p-10 - 0x1p-22};
    const double nearest[] = {1 + 0x1p-10, -1 - 0x1p-10, 1, 2};
    struct host host = prepare(c, s);
    for (int64_t d = 0; d < s->width; d++) {
        host.qkv[d] = s->spread != 0 ? ties[d % 4] : 0;
        host.qkv[s->width + d] = s->spread != 0 ? 0 : ties[d % 4];
        host.qkv[2 * s->width + d] = host.out[d] = 0;
        host.dout[d] = ties[d % 4];
        bool rounds = test_device() == DEVICE_CUDA;
        host.dqkv[2 * s->width + d] = rounds ? nearest[d % 4] : ties[d % 4];
    }
    host.lse[0] = 0;
    struct tensor dqkv = run(c, &host);
    check_equal(c, "gradients of values in TF32", &dqkv, host.dqkv);
}

Test(attention_mma_backward, tf32_rounds_inputs) {
    for (int64_t width = 64; width <= 128; width *= 2)
        for (int spread = 0; spread < 2; spread++)
            check_tf32(rounds_inputs, &(const struct shape){1, 1, 1, width, DTYPE_F32, spread, 0});
}
