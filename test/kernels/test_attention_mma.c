/* Attention on tensor cores: 16 bits, heads of 64, 128 or 256 values, and fp32 as TF32, heads of 64
 * or 128; lengths at the borders of tiles (16 rows of a matmul, 32 of a warp, 64 keys, 128
 * queries). test_attention.c has the rest.
 */
#include <criterion/criterion.h>
#include <math.h>

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

static struct qkv_row row_of(const struct shape *s) {
    return qkv_row(s->heads, s->kv_heads, s->width);
}

enum { LENGTH_MAX = 400 };

struct results {
    struct tensor qkv, out, lse;
    double *out_exact, *out_size, *lse_exact, *lse_size;
};

/* Query i of head h; first: the batch's first row of qkv. An absolute error in a score is a
 * relative error of its exponential; rounding to 16 bits adds `rounding`, all in units of 2^-24.
 * Returns log(sum(exp(scores))). */
static double attend(const struct shape *s, const double *first, int64_t h, int64_t i, double *out,
                     double *out_size, double *lse_size, double rounding) {
    double scores[LENGTH_MAX], sizes[LENGTH_MAX], max = -INFINITY, sum = 0;
    struct qkv_row row = row_of(s);
    int64_t stride = row.columns;
    const double *q = first + h * s->width;
    const double *k = first + key_column(row, h), *v = first + value_column(row, h);
    for (int64_t j = 0; j <= i; j++) {
        scores[j] = sizes[j] = 0;
        for (int64_t d = 0; d < s->width; d++) {
            double term = q[i * stride + d] * k[j * stride + d] / sqrt((double)s->width);
            scores[j] += term;
            sizes[j] += fabs(term);
        }
        max = fmax(max, scores[j]);
        *lse_size = fmax(*lse_size, sizes[j]);
    }
    for (int64_t j = 0; j <= i; j++) sum += exp(scores[j] - max);
    for (int64_t j = 0; j <= i; j++) {
        double p = exp(scores[j] - max) / sum, unsure = 4 * (1 + sizes[j] + *lse_size) + rounding;
        for (int64_t d = 0; d < s->width; d++) {
            out[d] += p * v[j * stride + d];
            out_size[d] += p * fabs(v[j * stride + d]) * unsure;
        }
    }
    *lse_size += fabs(max + log(sum)) + 1;
    return max + log(sum);
}

static void reference(struct check *c, const struct shape *s, struct results *r) {
    int64_t all = s->heads * s->width, rows = s->batch * s->length;
    const double *qkv = check_read(c, &r->qkv);
    double allowed = tolerance_of("attention_forward_mma")->arithmetic[s->dtype];
    double rounding = check_operand_roundoff(c, s->dtype) / 0x1p-24;
    r->out_exact = check_doubles(c, rows * all);
    r->out_size = check_doubles(c, rows * all);
    r->lse_exact = check_doubles(c, rows * s->heads);
    r->lse_size = check_doubles(c, rows * s->heads);
    for (int64_t n = 0; n < s->heads * rows; n++) {
        int64_t b = n / s->length / s->heads, h = n / s->length % s->heads, i = n % s->length;
        int64_t to = (b * s->length + i) * all + h * s->width;
        const double *first = qkv + b * s->length * row_of(s).columns;
        r->lse_exact[n] =
            attend(s, first, h, i, r->out_exact + to, r->out_size + to, r->lse_size + n, rounding);
        for (int64_t d = 0; d < s->width; d++) r->out_size[to + d] /= allowed;
    }
}

static void run(struct check *c, const struct shape *s, struct results *r) {
    int64_t all = s->heads * s->width, rows = s->batch * s->length;
    r->out = check_rank3(check_output(c, s->dtype, rows, all), s->batch, s->length, all);
    r->lse = check_output(c, DTYPE_F32, s->batch * s->heads, s->length);
    struct amax *amax = check_amax(c, 0, false);
    CHECK_OP(c, attention_forward, .out = &r->out, .lse = r->lse.data, .qkv = &r->qkv,
             .scale = 1 / sqrt((double)s->width), .track_amax = amax, .heads = (int)s->heads,
             .kv_heads = (int)row_of(s).kv_heads);
    if (c->verify) check_amax_covers(c, amax, 0, false, &r->out);
}

static void forward(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t columns = row_of(s).columns;
    struct tensor flat = check_normal(c, s->dtype, s->batch * s->length, columns, s->spread);
    struct results r = {.qkv = check_rank3(flat, s->batch, s->length, columns)};
    run(c, s, &r);
    if (!c->verify) return;
    reference(c, s, &r);
    check_close(c, "attention_lse", &r.lse, r.lse_exact, r.lse_size);
    check_close(c, "attention_forward_mma", &r.out, r.out_exact, r.out_size);
}

Test(attention_mma, lengths) {
    static const int64_t lengths[] = {1, 15, 16, 17, 63, 64, 65, 77, 127, 128, 129, 200};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        enum dtype one = i % 2 ? DTYPE_F16 : DTYPE_BF16, other = i % 2 ? DTYPE_BF16 : DTYPE_F16;
        check_on_each_gpu(forward, &(const struct shape){1, lengths[i], 1, 64, one, 1, 0});
        check_on_each_gpu(forward, &(const struct shape){1, lengths[i], 1, 128, other, 1, 0});
        check_on_each_gpu(forward, &(const struct shape){1, lengths[i], 2, 256, one, 1, 1});
    }
}

/* Keys come 64 at a time for D = 64, and 48 for D = 128: not a divisor of the 128 queries. */
Test(attention_mma, key_tiles) {
    static const int64_t lengths[] = {47, 48, 49, 96, 97, 143, 144, 145, 257};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        enum dtype dtype = i % 2 ? DTYPE_F16 : DTYPE_BF16;
        check_on_each_gpu(forward, &(const struct shape){1, lengths[i], 1, 128, dtype, 1, 0});
    }
}

/* Two blocks share the 100 KB of sm_86, sm_89 and sm_120, with tiles of 32 keys for wide heads. */
Test(attention_mma, two_blocks_in_100_KB) {
    const int64_t lengths[] = {1, 31, 32, 33, 64, 97, 150, 290};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        enum dtype dtype = i % 2 ? DTYPE_F16 : DTYPE_BF16;
        const struct shape wide = {1, lengths[i], 2, 128, dtype, 1, 1};
        cr_assert_geq(check_on_gpu(86, 2, forward, &wide), 2);
        const struct shape widest = {1, lengths[i], 2, 256, dtype, 1, 1};
        cr_assert_eq(check_on_gpu(86, 1, forward, &widest), 1);
    }
    const struct shape narrow = {1, 150, 1, 64, DTYPE_BF16, 1, 0};
    cr_assert_geq(check_on_gpu(120, 2, forward, &narrow), 2);
}

/* A qkv that starts 2 bytes after a multiple of 16 goes to plain threads. */
static void odd_place(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t columns = row_of(s).columns, rows = s->batch * s->length;
    struct tensor all = check_normal(c, s->dtype, 1, rows * columns + 1, s->spread);
    struct tensor range = tensor_range(&all, 1, rows * columns);
    struct tensor flat = tensor_view(&range, rows, columns);
    struct results r = {.qkv = check_rank3(flat, s->batch, s->length, columns)};
    run(c, s, &r);
    if (!c->verify) return;
    reference(c, s, &r);
    check_close(c, "attention_forward_mma", &r.out, r.out_exact, r.out_size);
}

Test(attention_mma, odd_place) {
    check_on_each_gpu(odd_place, &(const struct shape){1, 33, 2, 64, DTYPE_BF16, 1, 1});
}

Test(attention_mma, batches_and_heads) {
    check_on_each_gpu(forward, &(const struct shape){3, 70, 5, 64, DTYPE_BF16, 1, 0});
    check_on_each_gpu(forward, &(const struct shape){2, 131, 3, 128, DTYPE_F16, 1, 0});
    check_on_each_gpu(forward, &(const struct shape){2, 33, 2, 64, DTYPE_F16, 1, 0});
}

/* Query heads that read the same keys and values, one of them in the next group. */
Test(attention_mma, grouped) {
    check_on_each_gpu(forward, &(const struct shape){1, 77, 9, 64, DTYPE_BF16, 1, 3});
    check_on_each_gpu(forward, &(const struct shape){2, 77, 14, 64, DTYPE_F16, 1, 2});
    check_on_each_gpu(forward, &(const struct shape){1, 150, 4, 128, DTYPE_BF16, 1, 2});
    check_on_each_gpu(forward, &(const struct shape){2, 33, 3, 128, DTYPE_F16, 1, 1});
}

/* Several blocks of queries, the last of them incomplete; keys pass through the ring three
 * times. */
Test(attention_mma, long_rows) {
    check_on_each_gpu(forward, &(const struct shape){1, 390, 1, 64, DTYPE_F16, 1, 0});
    check_on_each_gpu(forward, &(const struct shape){1, 320, 1, 128, DTYPE_BF16, 1, 0});
    check_on_each_gpu(forward, &(const struct shape){2, 390, 2, 256, DTYPE_BF16, 1, 1});
}

/* Scores of thousands, where softmax selects one key, or a few in a tie. */
Test(attention_mma, large_scores) {
    check_on_each_gpu(forward, &(const struct shape){1, 150, 2, 64, DTYPE_BF16, 30, 0});
    check_on_each_gpu(forward, &(const struct shape){1, 150, 1, 64, DTYPE_F16, 30, 0});
    check_on_each_gpu(forward, &(const struct shape){1, 150, 1, 128, DTYPE_BF16, 5, 0});
    check_on_each_gpu(forward, &(const struct shape){1, 150, 1, 128, DTYPE_F16, 30, 0});
}

/* Maxima that rise from tile to tile, fall, or are far below zero: each exercises the rescaling
 * of earlier sums. Keys are multiples of one direction, and so are queries. */
static void ramp(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t columns = 3 * s->heads * s->width, all = s->heads * s->width;
    double *values = check_doubles(c, s->batch * s->length * columns);
    for (int64_t i = 0; i < s->length; i++)
        for (int64_t d = 0; d < columns; d++) {
            uint64_t at = (uint64_t)(i * columns + d);
            double slope = i % 3 == 0 ? 1 : i % 3 == 1 ? -1 : 0.01;
            double value = d < all       ? slope
                           : d < 2 * all ? 0.01 * (double)i
                                         : random_normal(7, 0, at);
            values[at] = check_operand(c, s->dtype, value);
        }
    struct tensor flat = check_tensor(c, CHECK_READ, s->dtype, s->length, columns, values);
    struct results r = {.qkv = check_rank3(flat, 1, s->length, columns)};
    run(c, s, &r);
    if (!c->verify) return;
    reference(c, s, &r);
    check_close(c, "attention_lse", &r.lse, r.lse_exact, r.lse_size);
    check_close(c, "attention_forward_mma", &r.out, r.out_exact, r.out_size);
}

Test(attention_mma, rising_and_falling_scores) {
    check_on_each_gpu(ramp, &(const struct shape){1, 333, 1, 64, DTYPE_BF16, 0, 0});
    check_on_each_gpu(ramp, &(const struct shape){1, 200, 1, 128, DTYPE_F16, 0, 0});
}

/* Values after a position must not change a bit of its result, at any offset in a tile. */
static void causal(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t all = s->heads * s->width, columns = 3 * all;
    struct tensor flat = check_normal(c, s->dtype, s->length, columns, 1);
    struct results r = {.qkv = check_rank3(flat, 1, s->length, columns)};
    run(c, s, &r);
    double *first = check_read(c, &r.out), *changed = check_read(c, &r.qkv);
    static const int64_t cuts[] = {127, 70, 33, 8, 1};
    for (size_t n = 0; n < sizeof cuts / sizeof *cuts; n++) {
        for (int64_t i = cuts[n] * columns; i < s->length * columns; i++)
            changed[i] = check_operand(c, s->dtype, random_normal(99, n, (uint64_t)i));
        flat = check_tensor(c, CHECK_READ, s->dtype, s->length, columns, changed);
        r.qkv = check_rank3(flat, 1, s->length, columns);
        run(c, s, &r);
        double *second = check_read(c, &r.out);
        for (int64_t i = 0; i < cuts[n] * all; i++) cr_assert_eq(first[i], second[i]);
        cr_assert_neq(first[cuts[n] * all], second[cuts[n] * all]);
    }
}

Test(attention_mma, causal) {
    check_on_each_gpu(causal, &(const struct shape){1, 140, 1, 64, DTYPE_BF16, 1, 0});
    check_on_each_gpu(causal, &(const struct shape){1, 140, 1, 128, DTYPE_F16, 1, 0});
}

/* The same in TF32: keys come 48 at a time for D = 64, and 32 for D = 128. */
Test(attention_mma, tf32) {
    static const int64_t lengths[] = {1,  17, 31, 32,  33,  47,  49, 63,
                                      64, 77, 96, 128, 129, 200, 257};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        check_tf32(forward,
                   &(const struct shape){1, lengths[i], 1, i % 2 ? 128 : 64, DTYPE_F32, 1, 0});
    check_tf32(forward, &(const struct shape){3, 70, 5, 64, DTYPE_F32, 1, 0});
    check_tf32(forward, &(const struct shape){2, 77, 14, 64, DTYPE_F32, 1, 2});
    check_tf32(forward, &(const struct shape){2, 150, 4, 128, DTYPE_F32, 1, 2});
    check_tf32(forward, &(const struct shape){1, 390, 1, 64, DTYPE_F32, 1, 0});
    check_tf32(forward, &(const struct shape){1, 150, 2, 64, DTYPE_F32, 30, 0});
    check_tf32(ramp, &(const struct shape){1, 333, 1, 64, DTYPE_F32, 0, 0});
    check_tf32(ramp, &(const struct shape){1, 200, 1, 128, DTYPE_F32, 0, 0});
    check_tf32(causal, &(const struct shape){1, 140, 1, 64, DTYPE_F32, 1, 0});
    check_tf32(causal, &(const struct shape){1, 140, 1, 128, DTYPE_F32, 1, 0});
}

/* Sixteen keys at a time for D = 128, and 32 for D = 64, of which two blocks fit. */
Test(attention_mma, tf32_in_100_KB) {
    static const int64_t lengths[] = {15, 33, 97, 150};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const struct shape narrow = {1, lengths[i], 2, 64, DTYPE_F32, 1, 1};
        cr_assert_geq(check_tf32_on_gpu(86, 2, forward, &narrow), 2);
        const struct shape wide = {1, lengths[i], 1, 128, DTYPE_F32, 1, 0};
        cr_assert_eq(check_tf32_on_gpu(86, 1, forward, &wide), 1);
    }
}

/* Inputs that TF32 does not hold are rounded to nearest, ties away from zero. With scores of 0 the
 * second output is the mean of two values. */
static void rounds_inputs(struct check *c, const void *given) {
    const struct shape *s = given;
    const double ties[] = {1 + 0x1p-11, -1 - 0x1p-11, 1 + 0x1p-11 - 0x1p-23, 2 + 0x1p-10 - 0x1p-22};
    const double nearest[] = {1 + 0x1p-10, -1 - 0x1p-10, 1, 2};
    double *values = check_doubles(c, 2 * 3 * s->width), *expected = check_doubles(c, 2 * s->width);
    for (int64_t d = 0; d < 2 * s->width; d++) {
        values[d / s->width * 3 * s->width + 2 * s->width + d % s->width] = ties[d % 4];
        expected[d] = test_device() == DEVICE_CUDA ? nearest[d % 4] : ties[d % 4];
    }
    struct tensor flat = check_tensor(c, CHECK_READ, s->dtype, 2, 3 * s->width, values);
    struct results r = {.qkv = check_rank3(flat, 1, 2, 3 * s->width)};
    run(c, s, &r);
    check_equal(c, "attention of values in TF32", &r.out, expected);
}

Test(attention_mma, tf32_rounds_inputs) {
    check_tf32(rounds_inputs, &(const struct shape){1, 2, 1, 64, DTYPE_F32, 0, 0});
    check_tf32(rounds_inputs, &(const struct shape){1, 2, 1, 128, DTYPE_F32, 0, 0});
}
