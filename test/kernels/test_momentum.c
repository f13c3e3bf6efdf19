/* Rules with at most one moment, and the operations on whole matrices that Muon adds. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "test/kernels/check.h"
#include "test/kernels/reference.h"
#include "test/kernels/split_masters.h"

enum form { PLAIN, COPY_BF16, COPY_F16, SPLIT };

struct given {
    enum update_kind kind;
    int64_t count;
    enum dtype gradients, direction;
    enum form form;
    bool nesterov;
};

static const float LOSS_SCALE = 512, CLIP = 0.75f, LR = 0.01f, DECAY = 0.1f, FACTOR = 0.5f;
static const float BETA1 = 0.9f, BETA2 = 0.95f;

struct tensors {
    struct tensor master, remainder, copy, moment, gradients, direction;
    const struct step_state *state;
    const struct step_inputs *inputs;
    double *before, *moment_before; /* masters and moments */
};

static struct tensors make(struct check *c, const struct given *g, int32_t found_inf) {
    struct step_state state = {
        .loss_scale = LOSS_SCALE, .clip_factor = CLIP, .found_inf = found_inf, .updates = 3};
    struct step_inputs inputs = {.lr = (double)LR, .key = {1, 2}};
    struct tensors t = {
        .state = check_memory(c, CHECK_READ, &state, sizeof state),
        .inputs = check_memory(c, CHECK_READ, &inputs, sizeof inputs),
    };
    bool weights = g->kind != UPDATE_DIRECTION, apply = g->kind == UPDATE_APPLY;
    enum dtype copy = g->form == COPY_F16 ? DTYPE_F16 : DTYPE_BF16;
    if (weights) t.master = check_sum(c, DTYPE_F32, g->count, 0);
    if (weights && (g->form == COPY_F16 || g->form == COPY_BF16))
        t.copy = check_output(c, copy, g->count, 0);
    if (weights && g->form == SPLIT) split_in_two(c, &t.master, &t.remainder);
    if (!apply) t.moment = check_sum(c, DTYPE_F32, g->count, 0);
    if (!apply) t.gradients = check_normal(c, g->gradients, g->count, 0, 0.3 * (double)LOSS_SCALE);
    if (apply) t.direction = check_normal(c, g->direction, g->count, 0, 1);
    else if (!weights) t.direction = check_output(c, g->direction, g->count, 0);
    if (weights) t.before = read_masters(c, &t.master, &t.remainder);
    if (!apply) t.moment_before = check_read(c, &t.moment);
    return t;
}

static const struct tensor *optional(const struct tensor *tensor) {
    return tensor->data ? tensor : NULL;
}

static void run(struct check *c, const struct given *g, const struct tensors *t) {
    CHECK_OP(c, update, .kind = g->kind, .master = optional(&t->master),
             .remainder = t->remainder.data, .copy = optional(&t->copy),
             .moments = {optional(&t->moment)}, .gradients = optional(&t->gradients),
             .direction = optional(&t->direction), .state = t->state, .inputs = t->inputs,
             .beta1 = BETA1, .beta2 = BETA2, .weight_decay = DECAY, .lr_factor = FACTOR,
             .nesterov = g->nesterov);
}

static void verify(struct check *c, const struct given *g, const struct tensors *t) {
    const double lr = (double)LR * (double)FACTOR, b1 = BETA1, b2 = BETA2, decay = DECAY;
    const bool apply = g->kind == UPDATE_APPLY, weights = g->kind != UPDATE_DIRECTION;
    const double *source = check_read(c, apply ? &t->direction : &t->gradients);
    double *directions = check_doubles(c, g->count), *sizes = check_doubles(c, g->count);
    double *m = t->moment_before, *w = t->before, *weight_sizes = check_doubles(c, g->count);
    for (int64_t i = 0; i < g->count; i++) {
        double d = apply ? source[i] : source[i] / (double)LOSS_SCALE * (double)CLIP;
        double size = fabs(d);
        if (g->kind == UPDATE_SGD) d += decay * w[i], size += decay * fabs(w[i]);
        double rest = g->kind == UPDATE_SGD ? 1 : 1 - b1, before = apply ? 0 : m[i];
        sizes[i] = size + fabs(before);
        if (g->kind == UPDATE_LION) {
            double sum = b1 * before + (1 - b1) * d;
            m[i] = b2 * before + (1 - b2) * d;
            d = (sum > 0) - (sum < 0);
        } else if (!apply) {
            m[i] = b1 * before + rest * d;
            d = g->nesterov ? rest * d + b1 * m[i] : m[i];
        }
        directions[i] = d;
        if (!weights) continue;
        weight_sizes[i] = fabs(w[i]) + lr * fmax(sizes[i], 1);
        w[i] = (g->kind == UPDATE_SGD ? w[i] : w[i] * (1 - lr * decay)) - lr * d;
    }
    if (!apply) check_close(c, "adamw_moment", &t->moment, m, sizes);
    if (!weights) check_close(c, "adamw_moment", &t->direction, directions, sizes);
    if (!weights) return;
    struct tensor now = check_tensor(c, CHECK_READ, DTYPE_F32, g->count, 0,
                                     read_masters(c, &t->master, &t->remainder));
    check_close(c, "adamw_master", &now, w, weight_sizes);
    if (!t->copy.data) return;
    double *rounded = check_read(c, &t->master);
    for (int64_t i = 0; i < g->count; i++)
        rounded[i] = t->copy.dtype == DTYPE_F16
                         ? check_round(rounded[i], DTYPE_F16)
                         : f32_of_bits((uint32_t)upper_half(f32_bits((float)rounded[i])) << 16);
    check_equal(c, "copy", &t->copy, rounded);
}

static void body(struct check *c, const void *given) {
    struct tensors t = make(c, given, 0);
    run(c, given, &t);
    if (c->verify) verify(c, given, &t);
}

#define EACH_CASE(i) (int i = 0; i < 4 * 3 * 4 * 2; i++)
static struct given case_of(int i) {
    static const int64_t counts[] = {1, 77, 513, 20011};
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    return (struct given){.kind = (enum update_kind)(UPDATE_SGD + i % 4),
                          .count = counts[i / 4 % 4],
                          .gradients = dtypes[i % 3],
                          .direction = dtypes[i / 4 % 3],
                          .form = (enum form)(i / 3 % 4),
                          .nesterov = i >= 48};
}

Test(momentum, one_step) {
    for
        EACH_CASE(i) {
            const struct given g = case_of(i);
            check_everywhere(body, &g);
        }
}

/* Addresses that no vector can be loaded from. */
static void odd_body(struct check *c, const void *given) {
    struct given g = *(const struct given *)given;
    g.count = 1 + 20 * 64;
    struct tensors t = make(c, &g, 0);
    struct tensor *all[] = {&t.master, &t.remainder, &t.copy,
                            &t.moment, &t.gradients, &t.direction};
    for (int i = 0; i < 6; i++) {
        if (!all[i]->data) continue;
        *all[i] = tensor_range(all[i], 1, g.count - 1);
    }
    if (t.before) t.before++;
    if (t.moment_before) t.moment_before++;
    g.count--;
    run(c, &g, &t);
    if (c->verify) verify(c, &g, &t);
}
Test(momentum, odd_addresses) {
    for (int i = 0; i < 12; i++) {
        const struct given g = case_of(i);
        check_everywhere(odd_body, &g);
    }
}

static void skipped_body(struct check *c, const void *given) {
    const struct given *g = given;
    struct tensors t = make(c, g, 1);
    run(c, g, &t);
    if (!c->verify) return;
    if (t.moment.data) check_equal(c, "moment", &t.moment, t.moment_before);
    if (t.master.data && !t.remainder.data) check_equal(c, "master", &t.master, t.before);
}
Test(momentum, skipped_step_changes_nothing) {
    for (int i = 0; i < 12; i++) {
        const struct given g = case_of(i);
        check_everywhere(skipped_body, &g);
    }
}

/* A moment in bf16 is one of the two neighbors of the one in fp32. */
static void bf16_body(struct check *c, const void *given) {
    const struct given *g = given;
    struct tensors t = make(c, g, 0);
    struct tensor lower = check_tensor(c, CHECK_WRITE, DTYPE_BF16, g->count, 0, t.moment_before);
    double *before = check_read(c, &lower);
    t.moment = lower;
    run(c, g, &t);
    if (!c->verify) return;
    const double *now = check_read(c, &lower), *gradients = check_read(c, &t.gradients);
    for (int64_t i = 0; i < g->count; i++) {
        double d = gradients[i] / (double)LOSS_SCALE * (double)CLIP, rest = 1 - (double)BETA2;
        double m = g->kind == UPDATE_LION ? (double)BETA2 * before[i] + rest * d
                                          : (double)BETA1 * before[i] + (1 - (double)BETA1) * d;
        cr_assert_leq(fabs(now[i] - m), fabs(m) * 0x1.01p-7 + 1e-6, "element %d: %g, exactly %g",
                      (int)i, now[i], m);
    }
}
Test(momentum, bf16_moments_are_neighbors) {
    for (int kind = UPDATE_LION; kind <= UPDATE_DIRECTION; kind++) {
        const struct given g = {(enum update_kind)kind, 1025, DTYPE_F32, DTYPE_BF16, PLAIN, true};
        check_everywhere(bf16_body, &g);
    }
}

/* ---- whole matrices */

struct matrix {
    int64_t rows, columns;
    enum dtype dtype;
    double scale;
};

static void normalize_body(struct check *c, const void *given) {
    const struct matrix *m = given;
    struct tensor in = check_normal(c, m->dtype, m->rows, m->columns, m->scale);
    struct tensor out = check_output(c, m->dtype, m->rows, m->columns);
    CHECK_OP(c, normalize, .out = &out, .in = &in, .epsilon = 1e-7f);
    if (!c->verify) return;
    double *values = check_read(c, &in), sum = 0;
    int64_t count = m->rows * m->columns;
    for (int64_t i = 0; i < count; i++) sum += values[i] * values[i];
    double norm = fmax(sqrt(sum), (double)1e-7f);
    for (int64_t i = 0; i < count; i++) values[i] /= norm;
    check_close(c, "gelu_forward", &out, values, values);
}
Test(momentum, normalize) {
    static const struct matrix matrices[] = {{1, 1, DTYPE_F32, 1},         {72, 77, DTYPE_F32, 3},
                                             {300, 129, DTYPE_BF16, 1e-4}, {64, 128, DTYPE_F16, 1},
                                             {5, 7, DTYPE_F32, 1e-12},     {3, 9, DTYPE_F32, 0},
                                             {64, 64, DTYPE_F32, 1e18}};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        check_everywhere(normalize_body, &matrices[i]);
}

struct sum {
    int64_t rows, columns, out_columns, out_first, a_columns, a_first;
    enum dtype out, a, b;
    bool has_b;
    int64_t group, out_step, a_step;
};

static void sum_body(struct check *c, const void *given) {
    const struct sum *s = given;
    struct tensor a = check_normal(c, s->a, s->rows, s->a_columns, 1), b = {0};
    struct tensor out = check_sum(c, s->out, s->rows, s->out_columns);
    double *expected = check_read(c, &out), *size = check_read(c, &out);
    if (s->has_b) b = check_normal(c, s->b, s->rows, s->columns, 1);
    CHECK_OP(c, weighted_sum, .out = &out, .a = &a, .b = optional(&b), .out_first = s->out_first,
             .a_first = s->a_first, .columns = s->columns, .group = s->group,
             .out_step = s->out_step, .a_step = s->a_step, .alpha = 3.4445f, .beta = -4.775f);
    if (!c->verify) return;
    const double *x = check_read(c, &a), *y = s->has_b ? check_read(c, &b) : NULL;
    for (int64_t i = 0; i < s->rows * s->columns; i++) {
        int64_t row = i / s->columns, width = s->group ? s->group : s->columns;
        int64_t group = i % s->columns / width, column = i % s->columns % width;
        int64_t at = row * s->out_columns + s->out_first + group * s->out_step + column;
        double first =
            (double)3.4445f * x[row * s->a_columns + s->a_first + group * s->a_step + column];
        double second = y ? (double)-4.775f * y[i] : 0;
        expected[at] = first + second, size[at] = fabs(first) + fabs(second);
    }
    check_close(c, "gelu_forward", &out, expected, size);
}
Test(momentum, weighted_sum) {
    static const struct sum sums[] = {
        {7, 9, 9, 0, 9, 0, DTYPE_F32, DTYPE_F32, DTYPE_F32, true},
        {16, 64, 64, 0, 64, 0, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, true},
        {16, 64, 192, 64, 64, 0, DTYPE_BF16, DTYPE_F16, DTYPE_F32, false},
        {5, 24, 24, 0, 72, 48, DTYPE_F32, DTYPE_BF16, DTYPE_F32, false},
        {6, 16, 16, 0, 21, 0, DTYPE_F32, DTYPE_F32, DTYPE_F32, false},
        {6, 16, 21, 0, 16, 0, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, true},
        {33, 600, 600, 0, 600, 0, DTYPE_F16, DTYPE_F16, DTYPE_F32, true},
        {4, 10, 31, 20, 13, 3, DTYPE_F32, DTYPE_F32, DTYPE_F16, true},
        {16, 64, 64, 0, 160, 16, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, false, 16, 16, 32},
        {16, 64, 160, 16, 64, 0, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, true, 16, 32, 16},
        {5, 18, 40, 6, 18, 0, DTYPE_F32, DTYPE_F16, DTYPE_F32, true, 6, 12, 6},
        {3, 48, 96, 0, 48, 0, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, false, 16, 31, 16},
        {2, 1200, 2400, 0, 1200, 0, DTYPE_F32, DTYPE_F32, DTYPE_F32, false, 600, 1200, 600}};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) check_everywhere(sum_body, &sums[i]);
}
