/* Query heads that share keys and values give the same bits as with separate copies. The other
 * attention tests compare with references; this one compares bits. */
#include <criterion/criterion.h>
#include <math.h>

#include "data/util/random.h"
#include "test/kernels/check.h"
#include "test/kernels/qkv_row.h"

struct shape {
    int64_t batch, length, heads, kv_heads, width; /* B, T, H, H_kv, D */
    enum dtype dtype;
};

struct results {
    double *out, *lse, *dqkv, *decoded;
};

static double *random_values(struct check *c, int64_t count, uint64_t stream) {
    double *values = check_doubles(c, count);
    for (int64_t i = 0; i < count; i++) values[i] = random_normal(71, stream, (uint64_t)i);
    return values;
}

/* Copies the shared keys and values, once for each query head. */
static double *repeated(struct check *c, const struct shape *s, const double *values) {
    struct qkv_row from = qkv_row(s->heads, s->kv_heads, s->width);
    struct qkv_row to = qkv_row(s->heads, 0, s->width);
    int64_t rows = s->batch * s->length;
    double *result = check_doubles(c, rows * to.columns);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < to.q_columns; i++) {
            const double *old = values + row * from.columns;
            double *new = result + row *to.columns;
            int64_t head = i / s->width, d = i % s->width;
            new[i] = old[i];
            new[key_column(to, head) + d] = old[key_column(from, head) + d];
            new[value_column(to, head) + d] = old[value_column(from, head) + d];
        }
    return result;
}

static struct tensor given_rows(struct check *c, const struct shape *s, int64_t columns,
                                const double *values) {
    int64_t rows = s->batch * s->length;
    struct tensor flat = values ? check_tensor(c, CHECK_READ, s->dtype, rows, columns, values)
                                : check_output(c, s->dtype, rows, columns);
    return check_rank3(flat, s->batch, s->length, columns);
}

/* The last rows of each sequence. */
static struct tensor last_rows(struct check *c, const struct shape *s, int64_t columns,
                               const double *values) {
    double *last = check_doubles(c, s->batch * columns);
    for (int64_t i = 0; i < s->batch * columns; i++)
        last[i] = values[((i / columns + 1) * s->length - 1) * columns + i % columns];
    return check_tensor(c, CHECK_READ, s->dtype, s->batch, columns, last);
}

static struct results run(struct check *c, const struct shape *s, int kv_heads,
                          const double *values, const double *dout_values) {
    struct qkv_row row = qkv_row(s->heads, kv_heads, s->width);
    int heads = (int)s->heads;
    const double scale = 1 / sqrt((double)s->width);
    struct tensor qkv = given_rows(c, s, row.columns, values);
    struct tensor dout = given_rows(c, s, row.q_columns, dout_values);
    struct tensor out = given_rows(c, s, row.q_columns, NULL);
    struct tensor dqkv = given_rows(c, s, row.columns, NULL);
    struct tensor lse = check_output(c, DTYPE_F32, s->batch * s->heads, s->length);
    struct tensor decoded = check_output(c, s->dtype, s->batch, row.q_columns);
    CHECK_OP(c, attention_forward, .out = &out, .lse = lse.data, .qkv = &qkv, .scale = scale,
             .heads = heads, .kv_heads = kv_heads);
    CHECK_OP(c, attention_backward, .dqkv = &dqkv, .dout = &dout, .qkv = &qkv, .out = &out,
             .lse = lse.data, .scale = scale, .heads = heads, .kv_heads = kv_heads);
    struct tensor q = last_rows(c, s, row.columns, values);
    struct decode_keys keys[8];
    cr_assert_leq(s->batch, 8);
    for (int64_t b = 0; b < s->batch; b++)
        keys[b] =
            (struct decode_keys){.first = (int32_t)(b * s->length), .count = (int32_t)s->length};
    CHECK_OP(c, attention_decode, .out = &decoded, .q = &q, .cache = &qkv,
             .keys = check_decode_keys(c, keys, s->batch), .stride = 1, .keys_to = s->length,
             .keys_max = s->length, .scale = scale, .heads = heads, .kv_heads = kv_heads);
    return (struct results){check_read(c, &out), check_read(c, &lse), check_read(c, &dqkv),
                            check_read(c, &decoded)};
}

static void same(const char *what, const double *a, const double *b, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        cr_assert_eq(a[i], b[i], "%s[%d]: %g, %g", what, (int)i, a[i], b[i]);
}

static void as_repeated(struct check *c, const void *given) {
    const struct shape *s = given;
    struct qkv_row grouped = qkv_row(s->heads, s->kv_heads, s->width);
    struct qkv_row plain = qkv_row(s->heads, 0, s->width);
    int64_t rows = s->batch * s->length;
    double *values = random_values(c, rows * grouped.columns, 0);
    double *dout = random_values(c, rows * grouped.q_columns, 1);
    struct results a = run(c, s, (int)s->kv_heads, values, dout);
    struct results b = run(c, s, (int)s->heads, repeated(c, s, values), dout);
    same("out", a.out, b.out, rows * plain.q_columns);
    same("lse", a.lse, b.lse, rows * s->heads);
    same("decoded", a.decoded, b.decoded, s->batch * plain.q_columns);
    for (int64_t row = 0; row < rows; row++)
        same("dq", a.dqkv + row * grouped.columns, b.dqkv + row * plain.columns, plain.q_columns);
}

Test(attention_grouped, as_repeated) {
    static const struct shape shapes[] = {
        {1, 77, 9, 3, 24, DTYPE_F32},   {1, 77, 14, 2, 64, DTYPE_BF16},
        {2, 50, 4, 1, 64, DTYPE_F16},   {1, 77, 6, 2, 80, DTYPE_BF16},
        {1, 77, 4, 2, 96, DTYPE_F32},   {1, 150, 4, 2, 128, DTYPE_F16},
        {2, 40, 6, 3, 5, DTYPE_F32},    {1, 77, 9, 3, 64, DTYPE_F32},
        {1, 260, 4, 2, 64, DTYPE_BF16},
    };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        check_everywhere(as_repeated, &shapes[s]);
}
