#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "kernels/dropout.h"
#include "test/kernels/bench.h"
#include "test/kernels/check.h"

struct shape {
    int64_t rows, columns, first_row;
    enum dtype in, out;
    double probability;
    bool in_place, accumulate, tracks, misaligned;
    double scale; /* 0: none */
};

static const struct rounding_key key = {0x12345678, 0x9abcdef0};

/* The inputs of a step in backend memory. */
static const struct step_inputs *inputs_at(struct check *c, int64_t first_row) {
    struct step_inputs inputs = {.first_row = first_row};
    return check_memory(c, CHECK_READ, &inputs, sizeof inputs);
}

static void body(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t count = s->rows * s->columns;
    struct tensor in = s->in_place     ? check_sum(c, s->in, s->rows, s->columns)
                       : s->misaligned ? check_misaligned(c, CHECK_READ, s->in, s->rows, s->columns)
                                       : check_normal(c, s->in, s->rows, s->columns, 1.0);
    struct tensor out = s->in_place     ? in
                        : s->accumulate ? check_sum(c, s->out, s->rows, s->columns)
                                        : check_output(c, s->out, s->rows, s->columns);
    double *x = c->verify ? check_read(c, &in) : NULL;
    double *before = c->verify && s->accumulate ? check_read(c, &out) : NULL;
    struct amax *amax = s->tracks ? check_amax(c, 0.5f, false) : NULL;
    const struct step_inputs *inputs = inputs_at(c, s->first_row);
    double saved[4096];
    if (c->verify) memcpy(saved, x, (size_t)count * sizeof *saved);
    CHECK_OP(c, dropout, .out = &out, .in = &in, .inputs = inputs, .key = key,
             .probability = s->probability, .scale = s->scale, .accumulate = s->accumulate,
             .track_amax = amax);
    if (!c->verify) return;
    double *expected = check_doubles(c, count);
    for (int64_t i = 0; i < count; i++) {
        struct rounding_key row = rounding_row_key(key, s->first_row + i / s->columns);
        bool dropped = dropout_draw(row, i % s->columns) < dropout_threshold(s->probability);
        const double factor = (s->scale == 0 ? 1 : s->scale) / (1 - s->probability);
        expected[i] = (before ? before[i] : 0) + (dropped ? 0 : saved[i] * factor);
    }
    check_close(c, "dropout", &out, expected, NULL);
    if (amax) check_amax_covers(c, amax, 0.5f, false, &out);
}

/* The factor is rounded to fp32, the product once more, and a sum. */
Test(dropout, follows_its_draws) {
    static const struct shape shapes[] = {
        {1, 1, 0, DTYPE_F32, DTYPE_F32, 0.5, false, false, false, false, 0},
        {7, 33, 5, DTYPE_F32, DTYPE_BF16, 0.1, false, false, true, false, 0},
        {5, 77, 1, DTYPE_BF16, DTYPE_BF16, 0.3, true, false, false, false, 0},
        {16, 64, 1ll << 40, DTYPE_F16, DTYPE_F32, 0.9, false, false, true, false, 0},
        {3, 1030, 9, DTYPE_BF16, DTYPE_F16, 0.25, false, false, false, true, 0},
        {9, 72, 3, DTYPE_BF16, DTYPE_F32, 0.2, false, true, false, false, 0},
        {6, 50, 3, DTYPE_F32, DTYPE_BF16, 0.2, false, true, false, false, 0},
        {5, 77, 1, DTYPE_F32, DTYPE_BF16, 0.3, false, false, true, false, 0.22},
        {7, 33, 5, DTYPE_BF16, DTYPE_BF16, 0, true, false, false, false, 0.22},
        {3, 1030, 0, DTYPE_F32, DTYPE_F16, 0, false, false, true, false, 3},
        {9, 72, 2, DTYPE_F16, DTYPE_F32, 0, false, true, false, false, 0.3},
        {2, 50, 2, DTYPE_BF16, DTYPE_F32, 0, false, false, false, true, 0.3},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_everywhere(body, &shapes[i]);
}

/* Draws of n elements: the part that is dropped has a standard deviation of sqrt(p (1 - p) / n);
 * five of them are exceeded by one seed in a million. So do rows, columns and pairs of neighbours
 * show no pattern: the part of pairs in which both are dropped is p^2. */
Test(dropout, draws_are_independent) {
    enum { ROWS = 1000, COLUMNS = 1000 };
    const double p = 0.1, n = (double)ROWS * COLUMNS;
    static bool dropped[ROWS][COLUMNS];
    double all = 0, right = 0, below = 0;
    for (int row = 0; row < ROWS; row++) {
        struct rounding_key row_key = rounding_row_key(key, 77 + row);
        for (int i = 0; i < COLUMNS; i++)
            dropped[row][i] = dropout_draw(row_key, i) < dropout_threshold(p);
    }
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < COLUMNS; i++) {
            all += dropped[row][i];
            right += dropped[row][i] && dropped[row][(i + 1) % COLUMNS];
            below += dropped[row][i] && dropped[(row + 1) % ROWS][i];
        }
    cr_expect_float_eq(all / n, p, 5 * sqrt(p * (1 - p) / n), "%g", all / n);
    double pairs = 5 * sqrt(p * p * (1 - p * p) / n) * 1.2; /* pairs overlap */
    cr_expect_float_eq(right / n, p * p, pairs, "%g", right / n);
    cr_expect_float_eq(below / n, p * p, pairs, "%g", below / n);
}

static size_t time_dropout(struct bench *b, int variant) {
    struct tensor x = bench_rows(b, (enum dtype)variant, BENCH_WIDTH);
    struct tensor inputs = arena_tensor(&b->arena, DTYPE_F32, 64, 0);
    OP(&b->be, dropout, .out = &x, .in = &x, .inputs = inputs.data, .key = key, .probability = 0.1);
    return 2 * tensor_bytes(&x);
}
BENCH(dropout, in_place, bench_dtypes, time_dropout)
