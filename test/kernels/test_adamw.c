#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#include "test/kernels/golden.h"

enum lower { LOWER_NONE, LOWER_F16, LOWER_BF16 };

struct given {
    int64_t count;
    enum dtype gradients;
    enum lower lower;
    float loss_scale, clip, lr, weight_decay, epsilon;
    int32_t updates; /* taken before this one */
};

static const struct given cases[] = {
    {1, DTYPE_F32, LOWER_NONE, 1, 1, 1e-3f, 0.1f, 1e-8f, 0},
    {77, DTYPE_F32, LOWER_BF16, 1, 0.25f, 1e-3f, 0.1f, 1e-8f, 0},
    {513, DTYPE_F32, LOWER_F16, 65536, 1, 6e-4f, 0, 1e-8f, 9},
    {20011, DTYPE_F32, LOWER_BF16, 1, 0.5f, 1e-2f, 0.1f, 1e-8f, 1000},
    {1025, DTYPE_BF16, LOWER_BF16, 1, 1, 1e-3f, 0.1f, 1e-5f, 1},
    {1025, DTYPE_F16, LOWER_F16, 1024, 0.75f, 1e-3f, 0.01f, 1e-8f, 100000},
    {129, DTYPE_F32, LOWER_NONE, 3, 1, 1.0f, 0.5f, 1e-2f, 2},
};
#define EACH_CASE(i) (size_t i = 0; i < sizeof cases / sizeof *cases; i++)

static const float BETA1 = 0.9f, BETA2 = 0.95f;

struct tensors {
    struct tensor master, moment1, moment2, lower, gradients;
    const struct step_state *state;
    double *master_before, *moment1_before, *moment2_before;
};

static struct tensor positive(struct check *c, int64_t count) {
    struct tensor random = check_normal(c, DTYPE_F32, count, 0, 0.1);
    double *values = check_read(c, &random);
    for (int64_t i = 0; i < count; i++) values[i] *= values[i];
    return check_tensor(c, CHECK_WRITE, DTYPE_F32, count, 0, values);
}

static struct tensors make(struct check *c, const struct given *g, int32_t found_inf) {
    struct step_state state = {.loss_scale = g->loss_scale,
                               .clip_factor = g->clip,
                               .found_inf = found_inf,
                               .updates = g->updates};
    struct tensors t = {
        .master = check_sum(c, DTYPE_F32, g->count, 0),
        .moment1 = check_sum(c, DTYPE_F32, g->count, 0),
        .moment2 = positive(c, g->count),
        .gradients = check_normal(c, g->gradients, g->count, 0, 0.3 * (double)g->loss_scale),
        .state = check_memory(c, CHECK_READ, &state, sizeof state),
    };
    enum dtype lower = g->lower == LOWER_F16 ? DTYPE_F16 : DTYPE_BF16;
    if (g->lower != LOWER_NONE) t.lower = check_output(c, lower, g->count, 0);
    t.master_before = check_read(c, &t.master);
    t.moment1_before = check_read(c, &t.moment1);
    t.moment2_before = check_read(c, &t.moment2);
    return t;
}

static void run(struct check *c, const struct given *g, const struct tensors *t) {
    CHECK_OP(c, adamw, .master = &t->master, .moment1 = &t->moment1, .moment2 = &t->moment2,
             .lower = t->lower.data ? &t->lower : NULL, .gradients = &t->gradients,
             .state = t->state, .lr = g->lr, .beta1 = BETA1, .beta2 = BETA2, .epsilon = g->epsilon,
             .weight_decay = g->weight_decay);
}

static void verify_lower(struct check *c, const struct tensors *t) {
    double *master = check_read(c, &t->master);
    for (int64_t i = 0; i < tensor_count(&t->master); i++)
        master[i] = check_round(master[i], t->lower.dtype);
    check_equal(c, "lower", &t->lower, master);
}

/* The update as published (Loshchilov and Hutter, algorithm 2), in fp64. */
static void verify(struct check *c, const struct given *g, const struct tensors *t) {
    double *gradient = check_read(c, &t->gradients);
    double *master = t->master_before, *m = t->moment1_before, *v = t->moment2_before;
    double *size = check_doubles(c, g->count), *m_size = check_doubles(c, g->count);
    double step = g->updates + 1.0, lr = g->lr, beta1 = BETA1, beta2 = BETA2;
    for (int64_t i = 0; i < g->count; i++) {
        double d = gradient[i] / (double)g->loss_scale * (double)g->clip;
        m_size[i] = beta1 * fabs(m[i]) + (1 - beta1) * fabs(d);
        m[i] = beta1 * m[i] + (1 - beta1) * d;
        v[i] = beta2 * v[i] + (1 - beta2) * d * d;
        double root = sqrt(v[i] / (1 - pow(beta2, step))) + (double)g->epsilon;
        double rate = lr / (1 - pow(beta1, step));
        size[i] = fabs(master[i]) + rate * m_size[i] / root;
        master[i] = master[i] * (1 - lr * (double)g->weight_decay) - rate * m[i] / root;
    }
    check_close(c, "adamw_moment", &t->moment1, m, m_size);
    check_close(c, "adamw_moment", &t->moment2, v, v);
    check_close(c, "adamw_master", &t->master, master, size);
    if (t->lower.data) verify_lower(c, t);
}

static void body(struct check *c, const void *given) {
    struct tensors t = make(c, given, 0);
    run(c, given, &t);
    if (c->verify) verify(c, given, &t);
}

Test(adamw, one_step) {
    for
        EACH_CASE(i) check_everywhere(body, &cases[i]);
}

/* Parts of arrays, as the trainer asks for, from an odd place on; the rest may not change. */
static struct tensor part_of(struct check *c, struct tensor *whole, const double *before) {
    enum { SKIP = 3 };
    double *now = check_read(c, whole);
    for (int i = 0; before && i < SKIP; i++)
        cr_assert(now[i] == before[i] || (isnan(now[i]) && isnan(before[i])),
                  "wrote before the start");
    return tensor_range(whole, SKIP, tensor_count(whole) - SKIP);
}

static void odd_place(struct check *c, const void *given) {
    struct given g = *(const struct given *)given;
    struct tensors all = make(c, &g, 0), t = all;
    double *lower_before = check_read(c, &all.lower), *master_before = check_read(c, &all.master);
    t.master = part_of(c, &all.master, NULL);
    t.moment1 = part_of(c, &all.moment1, NULL);
    t.moment2 = part_of(c, &all.moment2, NULL);
    t.lower = part_of(c, &all.lower, NULL);
    t.gradients = part_of(c, &all.gradients, NULL);
    t.master_before = check_read(c, &t.master);
    t.moment1_before = check_read(c, &t.moment1);
    t.moment2_before = check_read(c, &t.moment2);
    g.count = tensor_count(&t.master);
    run(c, &g, &t);
    part_of(c, &all.master, master_before);
    part_of(c, &all.moment1, all.moment1_before);
    part_of(c, &all.moment2, all.moment2_before);
    part_of(c, &all.lower, lower_before);
    if (c->verify) verify(c, &g, &t);
}

Test(adamw, odd_place) {
    check_everywhere(odd_place, &cases[3]);
    check_everywhere(odd_place, &cases[5]);
}

/* Nothing may change, whatever the gradients hold, and the copy is not touched either. */
static void skip(struct check *c, const void *given) {
    const struct given *g = given;
    struct tensors t = make(c, g, 1);
    double *bad = check_doubles(c, g->count);
    for (int64_t i = 0; i < g->count; i++) bad[i] = i % 2 ? NAN : INFINITY;
    t.gradients = check_tensor(c, CHECK_READ, g->gradients, g->count, 0, bad);
    run(c, g, &t);
    check_equal(c, "master", &t.master, t.master_before);
    check_equal(c, "moment1", &t.moment1, t.moment1_before);
    check_equal(c, "moment2", &t.moment2, t.moment2_before);
    double *lower = t.lower.data ? check_read(c, &t.lower) : NULL;
    for (int64_t i = 0; lower && i < g->count; i++) cr_assert(isnan(lower[i]), "copy written");
}

Test(adamw, skipped_step_changes_nothing) {
    for
        EACH_CASE(i) check_everywhere(skip, &cases[i]);
}

/* Several steps in a row, where the updates counter matters. */
static void golden_group(struct check *c, const char *group, float weight_decay) {
    enum { STEPS = 5 };
    char name[5][64];
    static const char *const fields[] = {"initial", "gradients", "master", "moment1", "moment2"};
    for (int i = 0; i < 5; i++) snprintf(name[i], sizeof name[i], "%s.%s", group, fields[i]);
    struct tensors t = {.master = golden_tensor(c, CHECK_WRITE, name[0])};
    int64_t count = tensor_count(&t.master);
    double *zeros = check_doubles(c, count), *gradients = golden_values(c, name[1]);
    t.moment1 = check_tensor(c, CHECK_WRITE, DTYPE_F32, count, 0, zeros);
    t.moment2 = check_tensor(c, CHECK_WRITE, DTYPE_F32, count, 0, zeros);
    double *m_size = check_doubles(c, count); /* the largest so far: steps may cancel */
    for (int step = 0; step < STEPS; step++) {
        struct step_state state = {.loss_scale = 1, .clip_factor = 1, .updates = step};
        struct given g = {.lr = 1e-2f, .weight_decay = weight_decay, .epsilon = 1e-8f};
        t.state = check_memory(c, CHECK_READ, &state, sizeof state);
        t.gradients = check_tensor(c, CHECK_READ, DTYPE_F32, count, 0, gradients + step * count);
        run(c, &g, &t);
        if (!c->verify) continue;
        double *m = golden_values(c, name[3]) + step * count;
        double *v = golden_values(c, name[4]) + step * count;
        for (int64_t i = 0; i < count; i++) m_size[i] = fmax(m_size[i], fabs(m[i]));
        check_close(c, "golden_adamw", &t.master, golden_values(c, name[2]) + step * count, NULL);
        check_close(c, "golden_adamw", &t.moment1, m, m_size);
        check_close(c, "golden_adamw", &t.moment2, v, v);
    }
}

static void golden(struct check *c, const void *given) {
    (void)given;
    golden_group(c, "adamw", 0.1f);
    golden_group(c, "adamw_no_decay", 0);
}

Test(adamw, golden) {
    check_everywhere(golden, NULL);
}
