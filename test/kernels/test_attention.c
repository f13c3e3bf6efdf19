#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "data/util/random.h"
#include "test/device.h"
#include "test/kernels/attention_reference.h"
#include "test/kernels/golden.h"
#include "test/kernels/qkv_row.h"

/* Fields that a case does not name are 0. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

struct dtypes {
    enum dtype qkv, out, dout, dqkv;
};
#define F32 \
    { DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32 }
#define F16 \
    { DTYPE_F16, DTYPE_F16, DTYPE_F16, DTYPE_F16 }
#define BF16 \
    { DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16 }

struct shape {
    int64_t batch, length, heads, head_columns; /* B, T, H, D */
    struct dtypes dtypes;
    double spread;    /* standard deviation of q, k, v */
    int64_t kv_heads; /* H_kv; 0: same as H */
    int64_t document; /* largest length of isolated documents; 0: one for all */
    int64_t window;   /* keys that a query reads at most; 0: all */
    float scale, cap; /* of scores; scale 0: 1 / sqrt(D), cap 0: none */
};

static struct qkv_row row_of(const struct shape *s) {
    return qkv_row(s->heads, s->kv_heads, s->head_columns);
}

/* Returns [B, T] first keys on the host, or NULL if queries read all keys up to their own. Lengths
 * of documents vary, and 1 is frequent. */
static int32_t *first_keys_of(struct check *c, const struct shape *s, int64_t window) {
    int32_t *first = (int32_t *)check_doubles(c, s->batch * s->length);
    if (!s->document && !window) return NULL;
    for (int64_t i = 0, begin = 0, left = 0; i < s->batch * s->length; i++, left--) {
        int64_t t = i % s->length, length = 1 + (int64_t)(random_bits(5, 0, (uint64_t)i) % 97);
        if (t == 0 || left == 0) begin = t, left = length % 3 ? s->document : length;
        if (left > s->document) left = s->document;
        if (!s->document) begin = 0;
        first[i] = (int32_t)(window && t - window + 1 > begin ? t - window + 1 : begin);
    }
    return first;
}

static const struct shape shapes[] = {
    {2, 13, 4, 10, F32, 1.5, 0, 0, 0},  {1, 1, 1, 1, F32, 1, 0, 0, 0},
    {2, 77, 3, 24, F32, 1, 0, 0, 0},    {1, 200, 2, 64, F32, 1, 0, 0, 0},
    {2, 13, 4, 10, BF16, 1.5, 0, 0, 0}, {2, 77, 3, 24, BF16, 1, 0, 0, 0},
    {1, 129, 2, 64, BF16, 1, 0, 0, 0},  {2, 77, 3, 24, F16, 1, 0, 0, 0},
    {1, 65, 1, 33, F16, 1.5, 0, 0, 0},  {1, 64, 2, 128, BF16, 1, 0, 0, 0},
    {1, 50, 1, 16, F32, 6, 0, 0, 0},    {1, 333, 1, 20, F32, 1, 0, 0, 0},
    {3, 70, 23, 4, F32, 1, 0, 0, 0},    {1, 390, 1, 64, BF16, 1, 0, 0, 0},
    {1, 200, 1, 128, F16, 1, 0, 0, 0},
};
#define EACH_SHAPE(s) (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)

/* True if tensor cores, or a CPU's instructions for bf16, can multiply these tensors. P and dS are
 * then rounded as well: to 16 bits, or TF32. */
static bool suits_tensor_cores(const struct check *c, const struct shape *s, enum dtype dtype) {
    bool fp32 = dtype == DTYPE_F32;
    if (c->be.device.attention_bf16) return dtype == DTYPE_BF16 && s->head_columns % 32 == 0;
    return test_device() == DEVICE_CUDA && (!fp32 || (c->tf32 && s->cap == 0)) &&
           (s->head_columns == 64 || s->head_columns == 128 || (s->head_columns == 256 && !fp32));
}

static const char *forward_kind(const struct check *c, const struct shape *s) {
    bool lower = s->dtypes.qkv == s->dtypes.out && suits_tensor_cores(c, s, s->dtypes.qkv);
    return lower ? "attention_forward_mma" : "attention_forward";
}

static const char *backward_kind(const struct check *c, const struct shape *s) {
    const struct dtypes *d = &s->dtypes;
    bool same = d->qkv == d->out && d->qkv == d->dout && d->qkv == d->dqkv;
    bool lower = same && suits_tensor_cores(c, s, d->qkv);
    return lower ? "attention_backward_mma" : "attention_backward";
}

static double scale_of(const struct shape *s) {
    return s->scale != 0 ? (double)s->scale : 1 / sqrt((double)s->head_columns);
}

static struct head head_of(const struct shape *s, const double *qkv, const int32_t *first_keys,
                           int64_t b, int64_t h) {
    struct qkv_row row = row_of(s);
    const double *first = qkv + b * s->length * row.columns;
    return (struct head){.length = s->length,
                         .columns = row.width,
                         .stride = row.columns,
                         .q = first + h * row.width,
                         .k = first + key_column(row, h),
                         .v = first + value_column(row, h),
                         .first_keys = first_keys ? first_keys + b * s->length : NULL,
                         .scale = scale_of(s),
                         .cap = s->cap};
}

struct tensors {
    struct tensor qkv, out, lse, dout, dqkv;
    bool folded;               /* the window is given as first keys */
    const int32_t *first_keys; /* on the host, those of the window included; or NULL */
    const int32_t *sent;       /* in backend memory, without a window unless folded; or NULL */
    double *out_exact, *out_size, *lse_exact, *lse_size;
};

static void reference_forward(struct check *c, const struct shape *s, const double *qkv,
                              struct tensors *t) {
    int64_t all = s->heads * s->head_columns, rows = s->batch * s->length;
    t->out_exact = check_doubles(c, rows * all);
    t->out_size = check_doubles(c, rows * all);
    t->lse_exact = check_doubles(c, rows * s->heads);
    t->lse_size = check_doubles(c, rows * s->heads);
    for (int64_t n = 0; n < s->batch * s->heads; n++) {
        int64_t b = n / s->heads, h = n % s->heads;
        int64_t out_at = b * s->length * all + h * s->head_columns, lse_at = n * s->length;
        struct head head = head_of(s, qkv, t->first_keys, b, h);
        forward_head(&head, all, t->out_exact + out_at, t->out_size + out_at, t->lse_exact + lse_at,
                     t->lse_size + lse_at);
    }
}

static struct tensor output(struct check *c, const struct shape *s, enum dtype dtype,
                            int64_t columns) {
    struct tensor flat = check_output(c, dtype, s->batch * s->length, columns);
    return check_rank3(flat, s->batch, s->length, columns);
}

static struct tensor input(struct check *c, const struct shape *s, enum dtype dtype,
                           int64_t columns, double spread) {
    struct tensor flat = check_normal(c, dtype, s->batch * s->length, columns, spread);
    return check_rank3(flat, s->batch, s->length, columns);
}

static struct tensor input_qkv(struct check *c, const struct shape *s) {
    return input(c, s, s->dtypes.qkv, row_of(s).columns, s->spread);
}

static struct tensor input_dout(struct check *c, const struct shape *s) {
    return input(c, s, s->dtypes.dout, s->heads * s->head_columns, 1);
}

static void run_forward(struct check *c, const struct shape *s, struct tensors *t) {
    t->out = output(c, s, s->dtypes.out, s->heads * s->head_columns);
    t->lse = check_rank3(check_output(c, DTYPE_F32, s->batch * s->heads, s->length), s->batch,
                         s->heads, s->length);
    t->first_keys = first_keys_of(c, s, s->window);
    const int32_t *sent = t->folded ? t->first_keys : first_keys_of(c, s, 0);
    size_t bytes = (size_t)(s->batch * s->length) * sizeof *sent;
    if (sent) t->sent = check_memory(c, CHECK_READ, sent, bytes);
    struct amax *amax = check_amax(c, 0, false);
    CHECK_OP(c, attention_forward, .out = &t->out, .lse = t->lse.data, .qkv = &t->qkv,
             .first_keys = t->sent, .window = t->folded ? 0 : s->window, .scale = scale_of(s),
             .softcap = s->cap, .track_amax = amax, .heads = (int)s->heads,
             .kv_heads = (int)row_of(s).kv_heads);
    if (c->verify) check_amax_covers(c, amax, 0, false, &t->out);
}

static void forward(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensors t = {.qkv = input_qkv(c, s)};
    run_forward(c, s, &t);
    if (!c->verify) return;
    reference_forward(c, s, check_read(c, &t.qkv), &t);
    check_close(c, "attention_lse", &t.lse, t.lse_exact, t.lse_size);
    check_close(c, forward_kind(c, s), &t.out, t.out_exact, t.out_size);
}

Test(attention, forward) {
    for
        EACH_SHAPE(s) check_everywhere(forward, &shapes[s]);
}

static void verify_backward(struct check *c, const struct shape *s, const struct tensors *t) {
    int64_t all = s->heads * s->head_columns, count = tensor_count(&t->qkv);
    const double *qkv = check_read(c, &t->qkv), *out = check_read(c, &t->out);
    const double *dout = check_read(c, &t->dout), *lse = check_read(c, &t->lse);
    double *d = check_doubles(c, count), *size = check_doubles(c, count);
    for (int64_t n = 0; n < s->batch * s->heads; n++) {
        int64_t b = n / s->heads, h = n % s->heads, at = b * s->length * all + h * s->head_columns;
        struct head head = head_of(s, qkv, t->first_keys, b, h);
        int64_t q = head.q - qkv, k = head.k - qkv, v = head.v - qkv;
        struct backward_head w = {head,    all,   out + at, dout + at, lse + n * s->length,
                                  d + q,   d + k, d + v,    size + q,  size + k,
                                  size + v};
        backward_head(&w);
    }
    check_close(c, backward_kind(c, s), &t->dqkv, d, size);
}

static void run_backward(struct check *c, const struct shape *s, struct tensors *t) {
    t->dqkv = output(c, s, s->dtypes.dqkv, row_of(s).columns);
    struct tensor sums = check_sum(c, DTYPE_F32, row_of(s).columns, 0);
    double *before = check_read(c, &sums);
    struct amax *amax = check_amax(c, 0, false);
    CHECK_OP(c, attention_backward, .dqkv = &t->dqkv, .dout = &t->dout, .qkv = &t->qkv,
             .out = &t->out, .lse = t->lse.data, .first_keys = t->sent,
             .window = t->folded ? 0 : s->window, .scale = scale_of(s), .softcap = s->cap,
             .track_amax = amax, .heads = (int)s->heads, .kv_heads = (int)row_of(s).kv_heads,
             .column_sums = &sums);
    if (c->verify) check_column_sums(c, &sums, before, &t->dqkv);
    if (c->verify) check_amax_covers(c, amax, 0, false, &t->dqkv);
}

static void backward(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensors t = {.qkv = input_qkv(c, s), .dout = input_dout(c, s)};
    run_forward(c, s, &t);
    run_backward(c, s, &t);
    if (c->verify) verify_backward(c, s, &t);
}

Test(attention, backward) {
    for
        EACH_SHAPE(s) check_on_each_gpu(backward, &shapes[s]);
}

static void both(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensors t = {.qkv = input_qkv(c, s), .dout = input_dout(c, s)};
    run_forward(c, s, &t);
    run_backward(c, s, &t);
    if (!c->verify) return;
    reference_forward(c, s, check_read(c, &t.qkv), &t);
    check_close(c, "attention_lse", &t.lse, t.lse_exact, t.lse_size);
    check_close(c, forward_kind(c, s), &t.out, t.out_exact, t.out_size);
    verify_backward(c, s, &t);
}

static const struct dtypes plain[] = {F32, BF16, F16};

/* Every tile width, with heads that fill it and heads that do not; those that are no multiple of
 * 8 start at odd offsets. The lengths end in the first, a full, and a second tile. */
Test(attention, widths) {
    static const int64_t widths[] = {1,   2,   3,   7,   8,   12,  15,  16,  24, 31,  32,
                                     33,  40,  48,  63,  64,  65,  72,  80,  96, 100, 104,
                                     127, 128, 129, 136, 160, 192, 200, 255, 256};
    static const int64_t lengths[] = {65, 30, 77, 64};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        struct shape s = {1, lengths[w % 4], 2, widths[w], {0}, 1, 0, 0, 0};
        s.dtypes = plain[w % 3];
        check_everywhere(both, &s);
    }
    for (size_t d = 0; d < 3; d++) /* cases common to all dtypes */
        for (int64_t width = 16; width <= 256; width += width < 64 ? 16 : 64) {
            struct shape s = {1, 40, 1, width, {0}, 1, 0, 0, 0};
            s.dtypes = plain[d];
            check_everywhere(both, &s);
        }
}

/* Tiles have 8 to 64 rows. */
Test(attention, lengths) {
    static const int64_t lengths[] = {1,  2,  7,  8,  9,  15, 16,  17,  31,
                                      32, 33, 63, 64, 65, 97, 128, 129, 193};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        struct shape s = {2, lengths[l], 1, 20, F32, 1, 0, 0, 0};
        check_everywhere(both, &s);
        s.batch = 1;
        s.head_columns = 64;
        check_everywhere(both, &s);
        s.head_columns = l % 2 ? 64 : 128;
        s.dtypes = plain[1 + l / 2 % 2];
        check_on_each_gpu(both, &s);
        s.head_columns = 128;
        s.dtypes = plain[0];
        if (lengths[l] < 100) check_everywhere(both, &s);
        s.head_columns = 136;
        if (lengths[l] < 34) check_everywhere(both, &s);
    }
}

/* Several query heads that read the same keys and values: heads of every tile width, tensor
 * cores and plain threads, one key head for all, and groups that are not a power of 2. Lengths
 * end in the first, a full and a later tile; on the CPU the sums have one part, or several. */
Test(attention, grouped) {
    static const struct shape given[] = {
        {1, 77, 9, 24, F32, 1, 3, 0, 0},  {2, 77, 14, 64, F32, 1, 2, 0, 0},
        {1, 77, 9, 64, F32, 1, 3, 0, 0},  {1, 30, 6, 80, F32, 1, 2, 0, 0},
        {1, 40, 4, 96, F32, 1, 1, 0, 0},  {2, 64, 4, 128, F32, 1, 2, 0, 0},
        {2, 13, 6, 10, F32, 1, 3, 0, 0},  {1, 70, 14, 128, F32, 1, 2, 0, 0},
        {2, 5, 8, 5, F32, 1, 1, 0, 0},    {1, 50, 4, 160, F32, 1, 2, 0, 0},
        {1, 300, 4, 64, F32, 1, 2, 0, 0}, {1, 270, 3, 128, F32, 1, 1, 0, 0}};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        for (size_t d = 0; d < 3; d++) {
            struct shape s = given[i];
            s.dtypes = plain[d];
            if (d == i % 3 || (s.length < 100 && !test_emulated())) check_on_each_gpu(both, &s);
            if (d == 0 && s.head_columns % 64 == 0) check_tf32(both, &s);
        }
}

/* Isolated documents, windows and both: from one key to all, with borders inside and between tiles,
 * for plain threads and tensor cores, one part of the sums and several. */
Test(attention, first_keys) {
    static const struct {
        int64_t document, window;
    } kinds[] = {{1, 0},  {7, 0},  {32, 0},  {40, 0}, {97, 0},  {0, 1},
                 {0, 20}, {0, 64}, {0, 100}, {40, 9}, {97, 33}, {97, 400}};
    static const struct shape given[] = {
        {2, 77, 3, 24, F32, 1, 0, 0, 0},   {2, 77, 2, 64, F32, 1, 0, 0, 0},
        {1, 77, 4, 64, F32, 1, 2, 0, 0},   {1, 64, 2, 128, F32, 1, 0, 0, 0},
        {1, 130, 6, 128, F32, 1, 2, 0, 0}, {3, 13, 4, 10, F32, 1.5, 1, 0, 0},
        {1, 50, 2, 160, F32, 1, 0, 0, 0},  {1, 333, 2, 64, F32, 1, 1, 0, 0},
        {3, 70, 23, 4, F32, 1, 0, 0, 0},   {1, 1, 1, 16, F32, 1, 0, 0, 0},
        {1, 390, 1, 20, F32, 6, 0, 0, 0},  {1, 260, 2, 256, F32, 1, 1, 0, 0},
    };
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            struct shape s = given[i];
            if (test_leaves_out(i + k)) continue;
            s.dtypes = plain[(i + k) % 3];
            s.document = kinds[k].document;
            s.window = kinds[k].window;
            check_on_each_gpu(both, &s);
            if (s.dtypes.qkv == DTYPE_F32 && s.head_columns % 64 == 0) check_tf32(both, &s);
        }
}

/* Scales and soft caps, from one that hardly changes a score to one that most scores reach, with
 * documents and windows, for every kind of kernel. */
Test(attention, soft_caps) {
    static const struct {
        int64_t document, window;
        float scale, cap;
    } kinds[] = {{0, 0, 0, 50}, {0, 0, 0.1f, 0},   {0, 0, 0.3f, 2},
                 {40, 9, 0, 1}, {0, 33, 1, 20.5f}, {7, 0, 0.0625f, 0.5f}};
    static const struct shape given[] = {{2, 77, 4, 256, F32, 1, 1},  {1, 77, 4, 80, F32, 1, 2},
                                         {1, 77, 2, 64, F32, 1.5, 0}, {1, 150, 6, 128, F32, 1, 2},
                                         {2, 77, 3, 24, F32, 1, 1},   {3, 13, 4, 10, F32, 1.5, 1},
                                         {1, 150, 2, 256, F32, 1, 2}};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            struct shape s = given[i];
            if (test_leaves_out(i + k)) continue;
            s.dtypes = plain[(i + k) % 3];
            s.document = kinds[k].document, s.window = kinds[k].window;
            s.scale = kinds[k].scale, s.cap = kinds[k].cap;
            check_on_each_gpu(both, &s);
            if (s.dtypes.qkv == DTYPE_F32 && s.head_columns % 64 == 0) check_tf32(both, &s);
        }
}

/* A window has the bits of the same first keys. */
static void folded(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensors t[2] = {{.qkv = input_qkv(c, s), .dout = input_dout(c, s)}};
    t[1] = t[0];
    for (int i = 0; i < 2; i++) {
        t[i].folded = i == 1;
        run_forward(c, s, &t[i]);
        run_backward(c, s, &t[i]);
    }
    const struct tensor *pairs[][2] = {
        {&t[0].out, &t[1].out}, {&t[0].lse, &t[1].lse}, {&t[0].dqkv, &t[1].dqkv}};
    for (int p = 0; c->verify && p < 3; p++)
        cr_expect_arr_eq(check_read(c, pairs[p][0]), check_read(c, pairs[p][1]),
                         (size_t)tensor_count(pairs[p][0]) * sizeof(double));
}

Test(attention, windows_equal_first_keys) {
    static const struct shape given[] = {
        {2, 77, 3, 24, F32, 1, 0, 0, 20},   {2, 77, 2, 64, BF16, 1, 0, 40, 9},
        {1, 130, 4, 128, F16, 1, 2, 0, 64}, {1, 150, 2, 64, F16, 1, 1, 97, 400},
        {3, 13, 4, 10, BF16, 1, 1, 0, 1},
    };
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) check_on_each_gpu(folded, &given[i]);
    check_tf32(folded, &(const struct shape){1, 150, 2, 64, F32, 1, 1, 97, 33});
}

/* "autocast" gives qkv and out separate dtypes; the contract allows any. */
Test(attention, mixed_dtypes) {
    static const struct dtypes mixed[] = {
        {DTYPE_F32, DTYPE_BF16, DTYPE_BF16, DTYPE_F32},
        {DTYPE_BF16, DTYPE_F32, DTYPE_F32, DTYPE_BF16},
        {DTYPE_F32, DTYPE_F16, DTYPE_F16, DTYPE_F32},
        {DTYPE_F16, DTYPE_F32, DTYPE_F32, DTYPE_F16},
        {DTYPE_BF16, DTYPE_BF16, DTYPE_F32, DTYPE_BF16},
        {DTYPE_F16, DTYPE_F16, DTYPE_F16, DTYPE_F32},
        {DTYPE_F16, DTYPE_BF16, DTYPE_F32, DTYPE_F16},
    };
    static const int64_t widths[] = {64, 128, 24, 33};
    for (size_t m = 0; m < sizeof mixed / sizeof *mixed; m++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            struct shape s = {1, 70, 2, widths[w], {0}, 1, 0, 0, 0};
            s.dtypes = mixed[m];
            check_everywhere(both, &s);
        }
}

/* Function for finite differences: sum(dout * attention(qkv)) over the forward reference. */
struct problem {
    const struct shape *shape;
    double *qkv;
    const double *dout;
    const int32_t *first_keys;
};

static double objective(const void *state) {
    const struct problem *p = state;
    const struct shape *s = p->shape;
    int64_t all = s->heads * s->head_columns;
    double scores[16], sizes[16], total = 0;
    for (int64_t n = 0; n < s->batch * s->heads; n++) {
        struct head head = head_of(s, p->qkv, p->first_keys, n / s->heads, n % s->heads);
        const double *dout =
            p->dout + n / s->heads * s->length * all + n % s->heads * s->head_columns;
        for (int64_t i = 0; i < head.length; i++) {
            double lse = scores_of(&head, i, scores, sizes);
            for (int64_t j = first_key(&head, i); j <= i; j++)
                for (int64_t d = 0; d < head.columns; d++)
                    total += dout[i * all + d] * exp(scores[j] - lse) * head.v[j * head.stride + d];
        }
    }
    return total;
}

static void differences(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensors t = {.qkv = input_qkv(c, s), .dout = input_dout(c, s)};
    run_forward(c, s, &t);
    run_backward(c, s, &t);
    if (!c->verify) return;
    struct problem p = {s, check_read(c, &t.qkv), check_read(c, &t.dout), t.first_keys};
    int64_t count = tensor_count(&t.qkv);
    double *expected = check_doubles(c, count);
    for (int64_t i = 0; i < count; i++) expected[i] = check_derivative(objective, &p, &p.qkv[i]);
    check_close(c, "differences", &t.dqkv, expected, NULL);
}

Test(attention, finite_differences) {
    check_everywhere(differences, &(const struct shape){2, 7, 2, 5, F32, 1, 0, 0, 0});
    check_everywhere(differences, &(const struct shape){2, 7, 6, 3, F32, 1, 2, 0, 0});
    check_everywhere(differences, &(const struct shape){2, 7, 2, 5, F32, 1, 0, 3, 2});
    check_everywhere(differences, &(const struct shape){2, 7, 6, 3, F32, 1, 2, 3, 4, 0.4f, 0.7f});
}

/* Scores up to hundreds: exponentials overflow unless the maximum is subtracted first. */
static void extreme(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensors t = {.qkv = input_qkv(c, s)};
    run_forward(c, s, &t);
    double *out = check_read(c, &t.out), *lse = check_read(c, &t.lse);
    for (int64_t i = 0; i < tensor_count(&t.out); i++) cr_assert(isfinite(out[i]));
    for (int64_t i = 0; i < tensor_count(&t.lse); i++) cr_assert(isfinite(lse[i]));
    if (!c->verify) return;
    reference_forward(c, s, check_read(c, &t.qkv), &t);
    check_close(c, "attention_lse", &t.lse, t.lse_exact, t.lse_size);
}

/* Scores up to 10^13, whose products with the scale are rounded by thousands. */
static void huge(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensors t = {.qkv = input_qkv(c, s), .dout = input_dout(c, s)};
    run_forward(c, s, &t);
    run_backward(c, s, &t);
    double *out = check_read(c, &t.out), *dqkv = check_read(c, &t.dqkv);
    for (int64_t i = 0; i < tensor_count(&t.out); i++) cr_assert(isfinite(out[i]));
    for (int64_t i = 0; i < tensor_count(&t.dqkv); i++) cr_assert(isfinite(dqkv[i]));
    if (!c->verify) return;
    reference_forward(c, s, check_read(c, &t.qkv), &t);
    check_close(c, "attention_lse", &t.lse, t.lse_exact, t.lse_size);
    for (int64_t i = 0; i < tensor_count(&t.out); i++)
        cr_assert_float_eq(out[i], t.out_exact[i], 1e-5 * s->spread, "one key has all the weight");
}

Test(attention, extreme_scores) {
    check_everywhere(extreme, &(const struct shape){1, 40, 2, 16, F32, 30, 0, 0, 0});
    check_everywhere(extreme, &(const struct shape){1, 40, 2, 16, F16, 30, 0, 0, 0});
    /* The kernels of GPUs subtract from the product, with one instruction, as FlashAttention does.
     */
    if (test_device() == DEVICE_CPU)
        check_everywhere(huge, &(const struct shape){1, 77, 2, 64, F32, 1e6, 0, 0, 0});
}

/* Values after a position must not change a bit of its result. */
static void causal(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t all = s->heads * s->head_columns, half = s->length / 2;
    struct tensors t = {.qkv = input_qkv(c, s)};
    run_forward(c, s, &t);
    double *first = check_read(c, &t.out), *changed = check_read(c, &t.qkv);
    for (int64_t i = half * 3 * all; i < s->length * 3 * all; i++)
        changed[i] = random_normal(99, 0, (uint64_t)i);
    struct tensor flat = check_tensor(c, CHECK_READ, s->dtypes.qkv, s->length, 3 * all, changed);
    t.qkv = check_rank3(flat, 1, s->length, 3 * all);
    run_forward(c, s, &t);
    double *second = check_read(c, &t.out);
    for (int64_t i = 0; i < half * all; i++) cr_assert_eq(first[i], second[i]);
    cr_assert_neq(first[half * all], second[half * all]);
}

Test(attention, causal) {
    check_everywhere(causal, &(const struct shape){1, 77, 2, 24, F32, 1, 0, 0, 0});
    check_everywhere(causal, &(const struct shape){1, 77, 2, 24, BF16, 1, 0, 0, 0});
}

/* Earlier documents must not change a bit of a later one's results, nor must it change theirs. */
static void isolated(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t columns = row_of(s).columns, all = s->heads * s->head_columns, middle = s->length / 2;
    struct tensors a = {.qkv = input_qkv(c, s), .dout = input_dout(c, s)}, b = a;
    run_forward(c, s, &a);
    run_backward(c, s, &a);
    double *values = check_read(c, &a.qkv);
    int64_t begin = a.first_keys[middle], end = middle;
    while (end < s->length && a.first_keys[end] == begin) end++;
    for (int64_t i = 0; i < s->length * columns; i++)
        if (i / columns < begin || i / columns >= end)
            values[i] = random_normal(97, 0, (uint64_t)i);
    struct tensor flat = check_tensor(c, CHECK_READ, s->dtypes.qkv, s->length, columns, values);
    b.qkv = check_rank3(flat, 1, s->length, columns);
    run_forward(c, s, &b);
    run_backward(c, s, &b);
    double *out[] = {check_read(c, &a.out), check_read(c, &b.out)};
    double *dqkv[] = {check_read(c, &a.dqkv), check_read(c, &b.dqkv)};
    for (int64_t i = begin * all; i < end * all; i++) cr_assert_eq(out[0][i], out[1][i]);
    for (int64_t i = begin * columns; i < end * columns; i++) cr_assert_eq(dqkv[0][i], dqkv[1][i]);
    cr_assert_neq(out[0][0], out[1][0]);
    cr_assert_neq(out[0][end * all], out[1][end * all]);
}

Test(attention, isolated) {
    for (size_t d = 0; d < 3; d++) {
        struct shape s = {1, 200, 2, d == 1 ? 64 : 24, {0}, 1, 1, .document = 40};
        s.dtypes = plain[d];
        check_on_each_gpu(isolated, &s);
    }
}

/* A NaN in a query makes the weights of its row NaN, so training detects the fault. Earlier rows
 * and other heads stay unchanged. */
static void nan_spreads(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t all = s->heads * s->head_columns, row = s->length / 2;
    double *values = check_doubles(c, s->length * 3 * all);
    for (int64_t i = 0; i < s->length * 3 * all; i++) values[i] = random_normal(98, 0, (uint64_t)i);
    values[row * 3 * all + s->head_columns] = NAN;
    struct tensor flat = check_tensor(c, CHECK_READ, s->dtypes.qkv, s->length, 3 * all, values);
    struct tensors t = {.qkv = check_rank3(flat, 1, s->length, 3 * all)};
    run_forward(c, s, &t);
    double *out = check_read(c, &t.out);
    for (int64_t i = 0; i < s->length * all; i++) {
        bool of_query = i / all == row && i % all / s->head_columns == 1;
        cr_assert(!isnan(out[i]) == !of_query, "row %d column %d", (int)(i / all), (int)(i % all));
    }
}

Test(attention, nan_spreads) {
    check_everywhere(nan_spreads, &(const struct shape){1, 77, 3, 24, F32, 1, 0, 0, 0});
    check_everywhere(nan_spreads, &(const struct shape){1, 77, 3, 64, BF16, 1, 0, 0, 0});
}

/* The CPU's limit follows from its scratch layout and is asserted; the GPU's follows from its
 * tiles. */
static void too_wide(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensors t = {.qkv = input_qkv(c, s)};
    t.out = output(c, s, DTYPE_F32, s->heads * s->head_columns);
    t.lse = check_output(c, DTYPE_F32, s->heads, s->length);
    OP(&c->be, attention_forward, .out = &t.out, .lse = t.lse.data, .qkv = &t.qkv,
       .scale = scale_of(s), .heads = (int)s->heads, .kv_heads = (int)s->heads);
    cr_assert(strstr(c->be.failure.text, "257"), "%s", c->be.failure.text);
}

Test(attention, too_wide) {
    if (test_device() == DEVICE_CUDA)
        check_everywhere(too_wide, &(const struct shape){1, 4, 1, 257, F32, 1, 0, 0, 0});
}

static void golden(struct check *c, const void *given) {
    (void)given;
    const struct shape s = {2, 13, 4, 10, F32, 0, 0, 0, 0};
    struct tensors t = {
        .qkv = check_rank3(golden_tensor(c, CHECK_READ, "attention.qkv"), 2, 13, 120),
        .dout = check_rank3(golden_tensor(c, CHECK_READ, "attention.dout"), 2, 13, 40),
    };
    run_forward(c, &s, &t);
    run_backward(c, &s, &t);
    if (!c->verify) return;
    golden_close(c, "golden_attention", &t.out, "attention.out", NULL);
    golden_close(c, "golden_attention", &t.lse, "attention.lse", NULL);
    golden_close(c, "golden_attention", &t.dqkv, "attention.dqkv", NULL);
}

Test(attention, golden) {
    check_everywhere(golden, NULL);
}

/* All keys, a window, and isolated documents, with the instructions for bf16 of a CPU that has
 * them. */
struct golden_bf16 {
    const char *out, *lse, *dqkv;
    int64_t window;
    bool isolated;
};

static void golden_bf16(struct check *c, const void *given) {
    const struct golden_bf16 *golden = given;
    const struct shape s = {1, 77, 2, 32, BF16, .kv_heads = 1};
    const double scale = 1 / sqrt(32.0);
    struct tensors t = {
        .qkv = check_rank3(golden_tensor(c, CHECK_READ, "attention_bf16.qkv"), 1, 77, 128),
        .dout = check_rank3(golden_tensor(c, CHECK_READ, "attention_bf16.dout"), 1, 77, 64),
        .out = output(c, &s, DTYPE_BF16, 64),
        .dqkv = output(c, &s, DTYPE_BF16, 128),
        .lse = check_output(c, DTYPE_F32, 2, 77),
    };
    if (golden->isolated) t.sent = golden_tokens(c, "attention_bf16.first_keys", NULL);
    CHECK_OP(c, attention_forward, .out = &t.out, .lse = t.lse.data, .qkv = &t.qkv,
             .first_keys = t.sent, .window = golden->window, .scale = scale, .heads = 2,
             .kv_heads = 1);
    CHECK_OP(c, attention_backward, .dqkv = &t.dqkv, .dout = &t.dout, .qkv = &t.qkv, .out = &t.out,
             .lse = t.lse.data, .first_keys = t.sent, .window = golden->window, .scale = scale,
             .heads = 2, .kv_heads = 1);
    if (!c->verify) return;
    golden_close(c, "golden_attention_bf16", &t.out, golden->out, NULL);
    golden_close(c, "golden_attention_bf16", &t.lse, golden->lse, NULL);
    golden_close(c, "golden_attention_bf16", &t.dqkv, golden->dqkv, NULL);
}

Test(attention, golden_bf16) {
#define GOLDEN(name, ...)                                                                     \
    &(const struct golden_bf16){"attention_bf16." name ".out", "attention_bf16." name ".lse", \
                                "attention_bf16." name ".dqkv", __VA_ARGS__}
    check_everywhere(golden_bf16, GOLDEN("all", 0));
    check_everywhere(golden_bf16, GOLDEN("window", .window = 20));
    check_everywhere(golden_bf16, GOLDEN("isolated", .isolated = true));
}
