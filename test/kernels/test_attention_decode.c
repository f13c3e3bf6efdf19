#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "data/util/random.h"
#include "test/device.h"
#include "test/kernels/check.h"
#include "test/kernels/qkv_row.h"
#include "test/kernels/soft_cap.h"

struct shape {
    int64_t batch, length, heads, head_columns, position; /* B, T, H, D */
    enum dtype qkv, out;
    double spread;    /* standard deviation of q, k, v */
    bool odd;         /* tensors start one element past a vector's alignment */
    int64_t kv_heads; /* H_kv; 0: same as H */
    int64_t first_key;
    int64_t prefix;   /* keys that come from a run of rows, the same for all queries, before the
                       * queries' own keys, whose rows alternate */
    float scale, cap; /* of scores; scale 0: 1 / sqrt(D), cap 0: none */
};

static struct qkv_row row_of(const struct shape *s) {
    return qkv_row(s->heads, s->kv_heads, s->head_columns);
}

static double *random_values(struct check *c, const struct shape *s) {
    int64_t count = s->batch * s->length * row_of(s).columns;
    double *values = check_doubles(c, count);
    uint64_t stream = c->stream++;
    for (int64_t i = 0; i < count; i++)
        values[i] = s->spread * random_normal(51, stream, (uint64_t)i);
    return values;
}

/* Overwrites what the result must not depend on: rows beyond the position and before the first key,
 * and other rows' queries. */
static void poison_unread(const struct shape *s, double *values) {
    struct qkv_row columns = row_of(s);
    for (int64_t row = 0; row < s->batch * s->length; row++) {
        int64_t t = row % s->length;
        bool unread = t > s->position || t < s->first_key;
        int64_t count = unread ? columns.columns : columns.q_columns;
        for (int64_t i = 0; t != s->position && i < count; i++)
            values[row * columns.columns + i] = NAN;
    }
}

/* Returns the cache row of a query's key: sequences one after another or, with a prefix, the prefix
 * of the first one, then the own rows of all in turn. */
static int64_t cache_row(const struct shape *s, int64_t sequence, int64_t key) {
    if (s->prefix == 0) return sequence * s->length + key;
    return key < s->prefix ? key : s->prefix + (key - s->prefix) * s->batch + sequence;
}

static const struct decode_keys *keys_of(struct check *c, const struct shape *s) {
    struct decode_keys keys[16];
    cr_assert_leq(s->batch, 16);
    for (int64_t b = 0; b < s->batch; b++)
        keys[b] = (struct decode_keys){0, (int32_t)s->prefix, (int32_t)cache_row(s, b, s->prefix),
                                       (int32_t)(s->position + 1 - s->prefix)};
    return check_decode_keys(c, keys, s->batch);
}

/* Returns the window that begins at the first key, or 0 if that is key 0. */
static int64_t window_of(const struct shape *s) {
    return s->first_key > 0 ? s->position + 1 - s->first_key : 0;
}

/* Returns the values of a tensor, or of one with an element before it. */
static struct tensor placed(struct check *c, enum check_use use, enum dtype dtype, int64_t rows,
                            int64_t columns, const double *values, bool odd) {
    if (!odd) return check_tensor(c, use, dtype, rows, columns, values);
    int64_t count = rows * columns;
    double *more = check_doubles(c, count + 1);
    if (values) memcpy(more + 1, values, (size_t)count * sizeof *values);
    struct tensor whole = check_tensor(c, use, dtype, count + 1, 0, more);
    struct tensor part = tensor_range(&whole, 1, count);
    return tensor_view(&part, rows, columns);
}

struct operands {
    struct tensor q, cache;
};

/* Cases alternate between separate key and value caches with queries alone, and whole rows of
 * qkv for both. */
static bool is_narrow(const struct shape *s) {
    return (s->position + s->head_columns) % 2;
}

static struct operands operands_of(struct check *c, const struct shape *s, const double *values) {
    struct qkv_row row = row_of(s);
    int64_t rows = s->batch * s->length, first = is_narrow(s) ? row.q_columns : 0;
    int64_t columns = row.columns - first, q_columns = is_narrow(s) ? first : columns;
    double *q = check_doubles(c, s->batch * q_columns), *cache = check_doubles(c, rows * columns);
    for (int64_t t = 0; t < rows; t++) {
        int64_t to = cache_row(s, t / s->length, t % s->length);
        if (t % s->length < s->prefix && t >= s->length) continue; /* the first one's prefix */
        memcpy(cache + to * columns, values + t * row.columns + first,
               (size_t)columns * sizeof *cache);
    }
    for (int64_t i = 0; i < s->batch * q_columns; i++)
        q[i] = values[(i / q_columns * s->length + s->position) * row.columns + i % q_columns];
    struct tensor flat = placed(c, CHECK_READ, s->qkv, rows, columns, cache, s->odd);
    return (struct operands){placed(c, CHECK_READ, s->qkv, s->batch, q_columns, q, s->odd), flat};
}

/* Rows of qkv as they are stored. */
static double *stored_values(struct check *c, const struct shape *s, const struct operands *o) {
    struct qkv_row row = row_of(s);
    double *values = check_doubles(c, s->batch * s->length * row.columns);
    double *q = check_read(c, &o->q), *cache = check_read(c, &o->cache);
    int64_t q_columns = tensor_columns(&o->q), columns = tensor_columns(&o->cache);
    for (int64_t i = 0; i < s->batch * s->length; i++)
        memcpy(values + (i + 1) * row.columns - columns,
               cache + cache_row(s, i / s->length, i % s->length) * columns,
               (size_t)columns * sizeof *values);
    for (int64_t b = 0; b < s->batch; b++)
        memcpy(values + (b * s->length + s->position) * row.columns, q + b * q_columns,
               (size_t)row.q_columns * sizeof *values);
    return values;
}

static struct tensor output_of(struct check *c, const struct shape *s) {
    return placed(c, CHECK_WRITE, s->out, s->batch, row_of(s).q_columns, NULL, s->odd);
}

static double scale_of(const struct shape *s) {
    return s->scale != 0 ? (double)s->scale : 1 / sqrt((double)s->head_columns);
}

/* Planned for one key: the reserved memory must be enough for the whole length. */
static void decode(struct check *c, const struct shape *s, const struct tensor *out,
                   const struct operands *in) {
    struct attention_decode_args args = {.out = out,
                                         .q = &in->q,
                                         .cache = &in->cache,
                                         .stride = s->prefix ? s->batch : 1,
                                         .keys_to = 1,
                                         .keys_max = s->length,
                                         .window = window_of(s),
                                         .scale = scale_of(s),
                                         .softcap = s->cap,
                                         .heads = (int)s->heads,
                                         .kv_heads = (int)row_of(s).kv_heads};
    args.keys = keys_of(c, s);
    check_plan_begin(c);
    c->be.op->attention_decode(&c->be, &args);
    check_plan_end(c, "attention_decode");
    args.keys_from = s->first_key;
    args.keys_to = s->position + 1;
    c->be.op->attention_decode(&c->be, &args);
    check_finished(c, "attention_decode");
}

/* Returns the score of key j for the query of head h. first: the sequence's first row. Its size is
 * the sum of its absolute terms. */
static struct capped score(const struct shape *s, const double *first, int64_t h, int64_t j) {
    struct qkv_row row = row_of(s);
    const double *q = first + s->position * row.columns + h * row.width;
    const double *k = first + j * row.columns + key_column(row, h);
    double sum = 0, size = 0, scale = scale_of(s);
    for (int64_t d = 0; d < s->head_columns; d++) {
        sum += q[d] * k[d] * scale;
        size += fabs(q[d] * k[d] * scale);
    }
    return soft_capped(sum, size, s->cap);
}

/* One head in fp64. An absolute fp32 error in a score is a relative error of exp(score), so each
 * term is as uncertain as its score is large. */
static void reference_head(struct check *c, const struct shape *s, const double *first, int64_t h,
                           double *out, double *out_size) {
    struct qkv_row row = row_of(s);
    int64_t keys = s->position + 1;
    double *scores = check_doubles(c, keys), *sizes = check_doubles(c, keys);
    double max = -INFINITY, sum = 0, size_max = 0;
    for (int64_t j = s->first_key; j < keys; j++) {
        struct capped capped = score(s, first, h, j);
        scores[j] = capped.score, sizes[j] = capped.size;
        max = fmax(max, scores[j]);
        size_max = fmax(size_max, sizes[j]);
    }
    for (int64_t j = s->first_key; j < keys; j++) sum += exp(scores[j] - max);
    for (int64_t j = s->first_key; j < keys; j++) {
        const double *v = first + j * row.columns + value_column(row, h);
        double p = exp(scores[j] - max) / sum, unsure = 1 + sizes[j] + size_max;
        for (int64_t d = 0; d < s->head_columns; d++) {
            out[d] += p * v[d];
            out_size[d] += fabs(p * v[d]) * unsure;
        }
    }
}

struct expected {
    double *out, *size;
};

static struct expected reference(struct check *c, const struct shape *s, const double *qkv) {
    struct qkv_row row = row_of(s);
    int64_t count = s->batch * row.q_columns;
    struct expected expected = {check_doubles(c, count), check_doubles(c, count)};
    for (int64_t n = 0; n < s->batch * s->heads; n++)
        reference_head(c, s, qkv + n / s->heads * s->length * row.columns, n % s->heads,
                       expected.out + n * row.width, expected.size + n * row.width);
    return expected;
}

static void exact(struct check *c, const void *given) {
    const struct shape *s = given;
    double *values = random_values(c, s);
    poison_unread(s, values);
    struct operands in = operands_of(c, s, values);
    struct tensor out = output_of(c, s);
    decode(c, s, &out, &in);
    if (!c->verify) return;
    struct expected expected = reference(c, s, stored_values(c, s, &in));
    check_close(c, "attention_decode", &out, expected.out, expected.size);
}

static struct shape plain_shape(int64_t batch, int64_t length, int64_t heads, int64_t head_columns,
                                int64_t position, enum dtype dtype) {
    return (struct shape){.batch = batch,
                          .length = length,
                          .heads = heads,
                          .head_columns = head_columns,
                          .position = position,
                          .qkv = dtype,
                          .out = dtype,
                          .spread = 1};
}

static void check_shape(void (*body)(struct check *c, const void *given), int64_t batch,
                        int64_t length, int64_t heads, int64_t head_columns, int64_t position,
                        enum dtype dtype) {
    struct shape shape = plain_shape(batch, length, heads, head_columns, position, dtype);
    check_everywhere(body, &shape);
}

/* Heads that are whole vectors, and heads that start at odd offsets. Common cases run in all
 * dtypes, the others in one dtype each. */
Test(attention_decode, widths) {
    static const int64_t common[] = {1, 5, 36, 64, 96, 128, 256};
    static const int64_t others[] = {2,  3,  4,  7,   8,   12,  16,  17,  24,  31,  32,  33,  48,
                                     63, 65, 72, 100, 104, 127, 129, 136, 160, 192, 200, 248, 255};
    for (size_t w = 0; w < sizeof common / sizeof *common; w++)
        for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++)
            check_shape(exact, 2, 77, 2, common[w], w % 2 ? 76 : 40, dtype);
    for (size_t w = 0; w < sizeof others / sizeof *others; w++)
        check_shape(exact, 2, 77, 2, others[w], w % 2 ? 76 : 40, (enum dtype)(w % 3));
}

/* Keys are handled 4, 8, 16, 32, 64 and 128 at a time. */
Test(attention_decode, positions) {
    static const int64_t positions[] = {0,  1,  2,  3,  4,  6,  7,  8,   14,  15,  16,  30,  31,
                                        32, 33, 62, 63, 64, 65, 95, 126, 127, 128, 129, 198, 199};
    static const int64_t widths[] = {20, 64, 128};
    for (size_t p = 0; p < sizeof positions / sizeof *positions; p++)
        for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
            int64_t width = widths[(p + dtype) % 3];
            check_shape(exact, 2, 200, 1, width, positions[p], dtype);
        }
}

/* The last position of a sequence with this many keys. */
Test(attention_decode, lengths) {
    static const int64_t lengths[] = {1, 2, 5, 8, 9, 31, 32, 33, 64, 65, 77, 127, 128, 129, 160};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        enum dtype dtype = (enum dtype)(l % 3);
        int64_t length = lengths[l];
        check_shape(exact, 3, length, 2, 24, length - 1, dtype);
    }
}

/* Lengths at which a GPU's block of threads needs several rounds for the keys. */
Test(attention_decode, long_sequences) {
    check_shape(exact, 1, 1100, 1, 256, 1099, DTYPE_F32);
    check_shape(exact, 1, 1100, 1, 255, 600, DTYPE_F32);
    check_shape(exact, 2, 1100, 1, 256, 23, DTYPE_F32);
    check_shape(exact, 1, 2100, 1, 256, 2090, DTYPE_BF16);
    check_shape(exact, 1, 2060, 1, 256, 1023, DTYPE_F16);
}

Test(attention_decode, heads) {
    for (int64_t heads = 1; heads <= 12; heads++)
        for (int64_t batch = 1; batch <= 3; batch++) {
            enum dtype dtype = (enum dtype)((heads + batch) % 3);
            int64_t width = heads % 3 == 0 ? 16 : 5;
            check_shape(exact, batch, 40, heads, width, 36, dtype);
        }
}

/* Ranges from the first key to the row's own, with borders inside and between blocks of keys. */
Test(attention_decode, first_keys) {
    static const int64_t firsts[] = {1, 5, 31, 32, 33, 64, 75, 76};
    static const int64_t widths[] = {5, 24, 64, 128};
    for (size_t f = 0; f < sizeof firsts / sizeof *firsts; f++)
        for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
            struct shape shape = plain_shape(2, 77, 6, widths[(f + dtype) % 4], 76, dtype);
            shape.kv_heads = f % 2 ? 2 : 6;
            shape.first_key = firsts[f];
            check_everywhere(exact, &shape);
        }
    struct shape longer = plain_shape(1, 1100, 2, 64, 1090, DTYPE_BF16);
    for (longer.first_key = 3; longer.first_key < 1091; longer.first_key += 400)
        check_everywhere(exact, &longer);
}

/* Scales and soft caps, from one that hardly changes a score to one that most scores reach. */
Test(attention_decode, soft_caps) {
    static const float kinds[][2] = {{0, 50}, {0.1f, 0},  {0.3f, 2},
                                     {0, 1},  {1, 20.5f}, {0.0625f, 0.5f}};
    static const int64_t widths[] = {256, 80, 64, 5};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            enum dtype dtype = (enum dtype)((w + k) % 3);
            struct shape shape = plain_shape(2, 200, 4, widths[w], k % 2 ? 199 : 76, dtype);
            shape.kv_heads = 1 + (int64_t)w % 2;
            shape.first_key = k % 3 ? 33 : 0;
            shape.scale = kinds[k][0], shape.cap = kinds[k][1];
            check_everywhere(exact, &shape);
        }
}

/* A prefix that queries share, with its end inside and between blocks of keys, and first keys
 * before and after it; so many queries that a task or block of threads has several blocks of keys.
 */
Test(attention_decode, prefixes) {
    static const int64_t prefixes[] = {1, 5, 31, 32, 33, 64, 75, 76};
    static const int64_t widths[] = {5, 24, 64, 128};
    for (size_t p = 0; p < sizeof prefixes / sizeof *prefixes; p++) {
        enum dtype dtype = (enum dtype)(p % 3);
        struct shape shape =
            plain_shape(1 + (int64_t)p / 3 * 6, 77, 6, widths[(p + dtype) % 4], 76, dtype);
        shape.kv_heads = p % 2 ? 2 : 6;
        shape.prefix = prefixes[p];
        check_everywhere(exact, &shape);
        shape.first_key = 40;
        check_everywhere(exact, &shape);
    }
}

/* Queries with different numbers of keys in one call: parts of the keys are empty for some. */
static void unequal(struct check *c, const void *given) {
    const struct shape *s = given;
    struct shape one = *s;
    struct qkv_row row = row_of(s);
    struct operands in = operands_of(c, s, random_values(c, s));
    struct decode_keys keys[16];
    enum { WINDOW = 40 };
    for (int64_t b = 0; b < s->batch; b++)
        keys[b] = (struct decode_keys){.first = (int32_t)(b * s->length),
                                       .count = (int32_t)(1 + b * s->position / s->batch)};
    struct tensor out = output_of(c, s);
    CHECK_OP(c, attention_decode, .out = &out, .q = &in.q, .cache = &in.cache,
             .keys = check_decode_keys(c, keys, s->batch), .stride = 1, .keys_to = s->position + 1,
             .keys_max = s->length, .window = WINDOW, .scale = scale_of(s), .heads = (int)s->heads,
             .kv_heads = (int)s->heads);
    double *got = check_read(c, &out);
    for (int64_t b = 0; c->verify && b < s->batch; b++) {
        one.position = keys[b].count - 1;
        one.first_key = keys[b].count > WINDOW ? keys[b].count - WINDOW : 0;
        double *stored = stored_values(c, s, &in);
        memcpy(stored + (b * s->length + one.position) * row.columns,
               stored + (b * s->length + s->position) * row.columns,
               (size_t)row.q_columns * sizeof *stored);
        struct expected expected = reference(c, &one, stored);
        for (int64_t i = b * row.q_columns; i < (b + 1) * row.q_columns; i++)
            cr_assert_leq(fabs(got[i] - expected.out[i]), 0x1p-18 * expected.size[i], "%d", (int)i);
    }
}

Test(attention_decode, unequal_queries) {
    check_shape(unequal, 7, 140, 3, 24, 139, DTYPE_F32);
    check_shape(unequal, 2, 140, 3, 24, 139, DTYPE_F32);
}

Test(attention_decode, grouped) {
    static const int64_t heads[][2] = {{9, 3}, {14, 2}, {4, 1}, {6, 3}};
    static const int64_t widths[] = {5, 24, 64, 80, 96, 128, 256};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
            const int64_t *of = heads[(w + dtype) % 4];
            struct shape shape = plain_shape(2, 77, of[0], widths[w], 76 - (int64_t)w, dtype);
            shape.kv_heads = of[1];
            check_everywhere(exact, &shape);
            shape.position = 0;
            check_everywhere(exact, &shape);
        }
}

Test(attention_decode, mixed_dtypes) {
    static const int64_t widths[] = {64, 33};
    for (enum dtype qkv = DTYPE_F32; qkv <= DTYPE_BF16; qkv++)
        for (enum dtype out = DTYPE_F32; out <= DTYPE_BF16; out++)
            for (size_t w = 0; qkv != out && w < sizeof widths / sizeof *widths; w++) {
                struct shape shape = plain_shape(2, 70, 3, widths[w], 69, qkv);
                shape.out = out;
                check_everywhere(exact, &shape);
            }
}

Test(attention_decode, odd_places) {
    static const int64_t widths[] = {5, 64, 96, 128, 256};
    for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            struct shape shape = plain_shape(2, 45, 2, widths[w], 43, dtype);
            shape.odd = true;
            check_everywhere(exact, &shape);
        }
}

/* Scores up to thousands: exponentials overflow unless the maximum is subtracted first. */
Test(attention_decode, extreme_scores) {
    static const int64_t widths[] = {16, 64};
    for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            struct shape shape = plain_shape(1, 140, 2, widths[w], 139 - (int64_t)w, dtype);
            shape.spread = 30;
            check_everywhere(exact, &shape);
        }
}

/* Scores below the range of fp32 have weight 0, even where a whole block has no others. */
static void minus_infinity(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t columns = row_of(s).q_columns, seen = 3;
    double *values = random_values(c, s), *expected = check_doubles(c, columns);
    for (int64_t t = 0; t <= s->position; t++)
        for (int64_t i = 0; i < columns; i++) {
            double *at = values + t * 3 * columns + i;
            at[0] = 0x1p100;
            at[columns] = t < seen ? 0 : -0x1p100;
            if (t < seen) expected[i] += check_round(at[2 * columns], s->qkv) / (double)seen;
        }
    struct operands in = operands_of(c, s, values);
    struct tensor out = output_of(c, s);
    decode(c, s, &out, &in);
    if (c->verify) check_close(c, "attention_decode", &out, expected, NULL);
}

Test(attention_decode, scores_of_minus_infinity) {
    for (int64_t position = 20; position < 300; position += 90) {
        check_shape(minus_infinity, 1, 300, 2, 24, position, DTYPE_F32);
        check_shape(minus_infinity, 1, 300, 2, 24, position, DTYPE_BF16);
    }
}

/* A NaN in a key reaches its head, one in a value its column, so faults are visible. */
static void nan_spreads(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t columns = row_of(s).q_columns, row = s->position / 2, width = s->head_columns;
    double *values = random_values(c, s);
    values[row * 3 * columns + columns + width] = NAN; /* a key of head 1 */
    values[row * 3 * columns + 2 * columns + 2] = NAN; /* column 2 of head 0 */
    struct operands in = operands_of(c, s, values);
    struct tensor out = output_of(c, s);
    decode(c, s, &out, &in);
    double *got = check_read(c, &out);
    for (int64_t i = 0; i < columns; i++)
        cr_assert(!isnan(got[i]) == !(i / width == 1 || i == 2), "column %d", (int)i);
}

Test(attention_decode, nan_spreads) {
    for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
        check_shape(nan_spreads, 1, 77, 3, 24, 0, dtype);
        check_shape(nan_spreads, 1, 77, 3, 64, 70, dtype);
    }
}

/* If attention_forward multiplies in 16 bits, its weights are rounded to them. */
static const char *row_kind(const struct check *c, const struct shape *s) {
    if (c->be.device.attention_bf16 && s->qkv == DTYPE_BF16 && s->out == DTYPE_BF16 &&
        s->head_columns % 32 == 0)
        return "attention_decode_row_mma";
    bool lower = test_device() == DEVICE_CUDA && s->qkv == s->out && s->qkv != DTYPE_F32 &&
                 (s->head_columns == 64 || s->head_columns == 128 || s->head_columns == 256);
    return lower ? "attention_decode_row_mma" : "attention_decode_row";
}

/* The sequence in the layout of the other operation, then row by row. */
static void rows_of_forward(struct check *c, const void *given) {
    struct shape s = *(const struct shape *)given;
    int64_t columns = row_of(&s).q_columns, rows = s.batch * s.length;
    double *values = random_values(c, &s);
    struct tensor flat_qkv = placed(c, CHECK_READ, s.qkv, rows, row_of(&s).columns, values, false);
    struct tensor qkv = check_rank3(flat_qkv, s.batch, s.length, row_of(&s).columns);
    struct tensor flat = check_output(c, s.out, rows, columns);
    struct tensor all = check_rank3(flat, s.batch, s.length, columns);
    struct tensor lse = check_output(c, DTYPE_F32, s.batch * s.heads, s.length);
    CHECK_OP(c, attention_forward, .out = &all, .lse = lse.data, .qkv = &qkv, .scale = scale_of(&s),
             .heads = (int)s.heads, .kv_heads = (int)row_of(&s).kv_heads);
    double *forward = check_read(c, &all), *row = check_doubles(c, s.batch * columns);
    for (s.position = 0; s.position < s.length; s.position += 1 + s.position / 4) {
        struct tensor out = output_of(c, &s);
        struct operands in = operands_of(c, &s, values);
        decode(c, &s, &out, &in);
        if (!c->verify) continue;
        for (int64_t b = 0; b < s.batch; b++)
            memcpy(row + b * columns, forward + (b * s.length + s.position) * columns,
                   (size_t)columns * sizeof *row);
        struct expected expected = reference(c, &s, stored_values(c, &s, &in));
        check_close(c, row_kind(c, &s), &out, row, expected.size);
    }
}

Test(attention_decode, rows_of_forward) {
    for (enum dtype dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
        check_shape(rows_of_forward, 2, 77, 3, 24, 0, dtype);
        check_shape(rows_of_forward, 1, 130, 2, 64, 0, dtype);
        struct shape grouped = plain_shape(2, 40, 6, dtype == DTYPE_F16 ? 64 : 256, 0, dtype);
        grouped.kv_heads = 2;
        check_everywhere(rows_of_forward, &grouped);
    }
}

/* The CPU takes heads of any width; the GPU's registers set a limit. */
static void too_wide(struct check *c, const void *given) {
    const struct shape *s = given;
    struct operands in = operands_of(c, s, random_values(c, s));
    struct tensor out = output_of(c, s);
    OP(&c->be, attention_decode, .out = &out, .q = &in.q, .cache = &in.cache, .keys = keys_of(c, s),
       .stride = 1, .keys_to = 4, .keys_max = 4, .scale = scale_of(s), .heads = (int)s->heads,
       .kv_heads = (int)s->heads);
    cr_assert(strstr(c->be.failure.text, "257"), "%s", c->be.failure.text);
}

Test(attention_decode, too_wide) {
    check_shape(test_device() == DEVICE_CUDA ? too_wide : exact, 1, 4, 1, 257, 3, DTYPE_F32);
}
