#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data/util/random.h"
#include "test/kernels/bench.h"
#include "test/kernels/golden.h"
#include "test/kernels/split_masters.h"

enum form { PLAIN, COPY_F16, COPY_BF16, SPLIT };

struct given {
    int64_t count;
    enum dtype gradients;
    enum form form;
    float loss_scale, clip, lr, weight_decay, epsilon;
    int32_t updates; /* number of steps before this one */
};

static const struct given cases[] = {
    {1, DTYPE_F32, PLAIN, 1, 1, 1e-3f, 0.1f, 1e-8f, 0},
    {77, DTYPE_F32, COPY_BF16, 1, 0.25f, 1e-3f, 0.1f, 1e-8f, 0},
    {513, DTYPE_F32, COPY_F16, 65536, 1, 6e-4f, 0, 1e-8f, 9},
    {20011, DTYPE_F32, COPY_BF16, 1, 0.5f, 1e-2f, 0.1f, 1e-8f, 1000},
    {1025, DTYPE_BF16, COPY_BF16, 1, 1, 1e-3f, 0.1f, 1e-5f, 1},
    {1025, DTYPE_F16, COPY_F16, 1024, 0.75f, 1e-3f, 0.01f, 1e-8f, 100000},
    {129, DTYPE_F32, PLAIN, 3, 1, 1.0f, 0.5f, 1e-2f, 2},
    {1, DTYPE_F32, SPLIT, 1, 1, 1e-3f, 0.1f, 1e-8f, 0},
    {20011, DTYPE_F32, SPLIT, 1, 0.5f, 1e-2f, 0.1f, 1e-8f, 1000},
    {1025, DTYPE_BF16, SPLIT, 1, 1, 1e-3f, 0.1f, 1e-5f, 1},
};
#define EACH_CASE(i) (size_t i = 0; i < sizeof cases / sizeof *cases; i++)

static const struct rounding_key KEY = {0x12345678, 0x9abcdef0};
static const float BETA1 = 0.9f, BETA2 = 0.95f;

struct tensors {
    struct tensor master, moment1, moment2, copy, gradients;
    struct tensor remainder; /* remainders of split masters, stored as integers */
    const struct step_state *state;
    const struct step_inputs *inputs;
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
    struct step_inputs inputs = {.lr = g->lr, .key = KEY};
    struct tensors t = {
        .master = check_sum(c, DTYPE_F32, g->count, 0),
        .moment1 = check_sum(c, DTYPE_F32, g->count, 0),
        .moment2 = positive(c, g->count),
        .gradients = check_normal(c, g->gradients, g->count, 0, 0.3 * (double)g->loss_scale),
        .state = check_memory(c, CHECK_READ, &state, sizeof state),
        .inputs = check_memory(c, CHECK_READ, &inputs, sizeof inputs),
    };
    enum dtype copy = g->form == COPY_F16 ? DTYPE_F16 : DTYPE_BF16;
    if (g->form == COPY_F16 || g->form == COPY_BF16) t.copy = check_output(c, copy, g->count, 0);
    if (g->form == SPLIT) split_in_two(c, &t.master, &t.remainder);
    t.master_before = read_masters(c, &t.master, &t.remainder);
    t.moment1_before = check_read(c, &t.moment1);
    t.moment2_before = check_read(c, &t.moment2);
    return t;
}

#define UPDATE(g, t, OPERATION)                                                                   \
    OPERATION(.master = &t->master, .remainder = t->remainder.data,                               \
              .moments = {&t->moment1, &t->moment2}, .copy = t->copy.data ? &t->copy : NULL,      \
              .gradients = &t->gradients, .state = t->state, .inputs = t->inputs, .beta1 = BETA1, \
              .beta2 = BETA2, .epsilon = g->epsilon, .weight_decay = g->weight_decay,             \
              .lr_factor = 1)

static void run(struct check *c, const struct given *g, const struct tensors *t) {
#define CHECKED(...) CHECK_OP(c, update, __VA_ARGS__)
    UPDATE(g, t, CHECKED);
}

/* A case for many steps. */
static void run_unchecked(struct check *c, const struct given *g, const struct tensors *t) {
#define UNCHECKED(...) OP(&c->be, update, __VA_ARGS__)
    UPDATE(g, t, UNCHECKED);
}

/* bf16 rounds ties of masters away from zero. The cases contain no ties. */
static void verify_copy(struct check *c, const struct tensors *t) {
    double *master = check_read(c, &t->master);
    for (int64_t i = 0; i < tensor_count(&t->master); i++)
        master[i] = check_round(master[i], t->copy.dtype);
    check_equal(c, "copy", &t->copy, master);
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
    struct tensor now = check_tensor(c, CHECK_READ, DTYPE_F32, g->count, 0,
                                     read_masters(c, &t->master, &t->remainder));
    check_close(c, "adamw_master", &now, master, size);
    if (t->copy.data) verify_copy(c, t);
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

/* Partial updates, as the trainer requests them, from an odd offset on; the rest must not
 * change. */
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
    struct tensor *const wholes[] = {&all.master,  &all.remainder, &all.moment1,
                                     &all.moment2, &all.copy,      &all.gradients};
    struct tensor *const parts[] = {&t.master,  &t.remainder, &t.moment1,
                                    &t.moment2, &t.copy,      &t.gradients};
    double *before[6] = {NULL};
    for (int i = 0; i < 6; i++) {
        if (!wholes[i]->data) continue;
        before[i] = check_read(c, wholes[i]);
        *parts[i] = part_of(c, wholes[i], NULL);
    }
    t.master_before = read_masters(c, &t.master, &t.remainder);
    t.moment1_before = check_read(c, &t.moment1);
    t.moment2_before = check_read(c, &t.moment2);
    g.count = tensor_count(&t.master);
    run(c, &g, &t);
    for (int i = 0; i < 6; i++)
        if (wholes[i]->data) part_of(c, wholes[i], before[i]);
    if (c->verify) verify(c, &g, &t);
}

Test(adamw, odd_place) {
    check_everywhere(odd_place, &cases[3]);
    check_everywhere(odd_place, &cases[5]);
    check_everywhere(odd_place, &cases[8]);
}

/* A skipped step changes nothing, whatever the gradients hold; the copy is not written either. */
static void skip(struct check *c, const void *given) {
    const struct given *g = given;
    struct tensors t = make(c, g, 1);
    double *bad = check_doubles(c, g->count);
    for (int64_t i = 0; i < g->count; i++) bad[i] = i % 2 ? NAN : INFINITY;
    t.gradients = check_tensor(c, CHECK_READ, g->gradients, g->count, 0, bad);
    uint16_t *upper = t.remainder.data ? read_bits(c, &t.master) : NULL, *now;
    run(c, g, &t);
    if (upper) {
        now = read_bits(c, &t.master);
        cr_assert_eq(memcmp(upper, now, (size_t)g->count * sizeof *now), 0, "upper half written");
    }
    struct tensor master = check_tensor(c, CHECK_READ, DTYPE_F32, g->count, 0,
                                        read_masters(c, &t.master, &t.remainder));
    check_equal(c, "master", &master, t.master_before);
    check_equal(c, "moment1", &t.moment1, t.moment1_before);
    check_equal(c, "moment2", &t.moment2, t.moment2_before);
    double *copy = t.copy.data ? check_read(c, &t.copy) : NULL;
    for (int64_t i = 0; copy && i < g->count; i++) cr_assert(isnan(copy[i]), "copy written");
}

Test(adamw, skipped_step_changes_nothing) {
    for
        EACH_CASE(i) check_everywhere(skip, &cases[i]);
}

/* ---- forms compared with each other: the same bits */

/* Masters at every exponent: ties of the copy and their neighbours, both signs, subnormals, and
 * values that the copy rounds to infinity. Gradients range from zero to those that make the
 * update infinite. */
static double hostile_master(int64_t i) {
    static const uint32_t lows[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234, 0xfedc};
    uint32_t bits = (uint32_t)(i % 0x7f80) << 16 | lows[i / 7 % 8] | (uint32_t)(i & 1) << 31;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void make_hostile(struct check *c, const struct given *g, struct tensors *t) {
    *t = make(c, g, 0);
    double *values = check_doubles(c, g->count), *gradients = check_doubles(c, g->count);
    for (int64_t i = 0; i < g->count; i++) {
        values[i] = hostile_master(i);
        gradients[i] = ldexp(i % 3 ? 1 : -1, (int)(i % 61) - 40);
    }
    t->master = check_tensor(c, CHECK_WRITE, DTYPE_F32, g->count, 0, values);
    t->gradients = check_tensor(c, CHECK_READ, g->gradients, g->count, 0, gradients);
}

/* Consecutive steps, each form from its own previous state. */
static void forms_agree(struct check *c, const void *given) {
    enum { STEPS = 3 };
    struct given g = *(const struct given *)given;
    struct tensors kept, halves;
    make_hostile(c, &g, &kept);
    make_hostile(c, &g, &halves);
    halves.moment1 = check_tensor(c, CHECK_WRITE, DTYPE_F32, g.count, 0, kept.moment1_before);
    halves.moment2 = check_tensor(c, CHECK_WRITE, DTYPE_F32, g.count, 0, kept.moment2_before);
    halves.copy = (struct tensor){0};
    split_in_two(c, &halves.master, &halves.remainder);
    for (int step = 0; step < STEPS; step++) {
        run(c, &g, &kept);
        run(c, &g, &halves);
        if (!c->verify) continue;
        double *a = read_masters(c, &kept.master, &kept.remainder),
               *b = read_masters(c, &halves.master, &halves.remainder);
        uint16_t *copy = read_bits(c, &kept.copy), *upper = read_bits(c, &halves.master);
        for (int64_t i = 0; i < g.count; i++) {
            cr_assert(memcmp(&a[i], &b[i], sizeof *a) == 0 || (isnan(a[i]) && isnan(b[i])),
                      "master %d is %a kept and %a split", (int)i, a[i], b[i]);
            cr_assert_eq(copy[i], upper[i], "copy %d of %a is %04x kept and %04x split", (int)i,
                         a[i], copy[i], upper[i]);
        }
    }
}

Test(adamw, split_masters_are_those_with_a_copy) {
    static const struct given hostile[] = {
        {65536, DTYPE_F32, COPY_BF16, 1, 1, 1e-3f, 0.1f, 1e-8f, 0},
        {65536, DTYPE_BF16, COPY_BF16, 1, 0.25f, 0.5f, 0, 1e-8f, 7},
    };
    for (int i = 0; i < 2; i++) check_everywhere(forms_agree, &hostile[i]);
}

/* A thousand steps on gradients that change by forty powers of two from one step to the next, so
 * masters pass through all sizes, zero and overflow included. */
static void forms_stay_together(struct check *c, const void *given) {
    enum { STEPS = 1000 };
    const struct given *g = given;
    struct tensors kept, halves;
    make_hostile(c, g, &kept);
    make_hostile(c, g, &halves);
    halves.moment1 = check_tensor(c, CHECK_WRITE, DTYPE_F32, g->count, 0, kept.moment1_before);
    halves.moment2 = check_tensor(c, CHECK_WRITE, DTYPE_F32, g->count, 0, kept.moment2_before);
    halves.copy = (struct tensor){0};
    split_in_two(c, &halves.master, &halves.remainder);
    kept.gradients = halves.gradients = check_output(c, DTYPE_F32, g->count, 0);
    float *gradients = (float *)check_doubles(c, g->count);
    for (int step = 0; step < STEPS; step++) {
        for (int64_t i = 0; i < g->count; i++) {
            uint64_t bits = random_bits(11, (uint64_t)step, (uint64_t)i);
            gradients[i] = ldexpf(bits & 1 ? 1 : -1, (int)(bits >> 8 & 63) - 40);
            if ((bits >> 16 & 15) == 0) gradients[i] = 0;
        }
        backend_upload(&c->be, kept.gradients.data, gradients, tensor_bytes(&kept.gradients));
        run_unchecked(c, g, &kept);
        run_unchecked(c, g, &halves);
    }
    double *a = read_masters(c, &kept.master, &kept.remainder),
           *b = read_masters(c, &halves.master, &halves.remainder);
    for (int64_t i = 0; i < g->count; i++)
        cr_assert(memcmp(&a[i], &b[i], sizeof *a) == 0 || (isnan(a[i]) && isnan(b[i])),
                  "master %d is %a kept and %a split", (int)i, a[i], b[i]);
    check_equal(c, "moment1", &halves.moment1, check_read(c, &kept.moment1));
    check_equal(c, "moment2", &halves.moment2, check_read(c, &kept.moment2));
}

Test(adamw, split_masters_stay_those_with_a_copy) {
    check_everywhere(forms_stay_together, &(const struct given){2048, DTYPE_F32, COPY_BF16, 1, 1,
                                                                1e-2f, 0.1f, 1e-8f, 0});
}

/* ---- moments in bf16 */

static struct tensors with_bf16_moments(struct check *c, const struct given *g) {
    struct tensors t = make(c, g, 0);
    for (int64_t i = 0; i < g->count; i++) {
        t.moment1_before[i] = check_round(t.moment1_before[i], DTYPE_BF16);
        t.moment2_before[i] = check_round(t.moment2_before[i], DTYPE_BF16);
    }
    t.moment1 = check_tensor(c, CHECK_WRITE, DTYPE_BF16, g->count, 0, t.moment1_before);
    t.moment2 = check_tensor(c, CHECK_WRITE, DTYPE_BF16, g->count, 0, t.moment2_before);
    return t;
}

/* Expects fp32 moments rounded up or down, as the element's half of a random draw decides. */
static void expect_neighbors(struct check *c, const struct tensor *rounded,
                             const struct tensor *exact, int shift) {
    int64_t up = 0, inexact = 0;
    uint16_t *got = read_bits(c, rounded);
    double *wanted = check_read(c, exact);
    for (int64_t i = 0; i < tensor_count(rounded); i++) {
        float value = (float)wanted[i];
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        uint16_t below = (uint16_t)(bits >> 16);
        bool is_exact = (bits & 0xffff) == 0;
        uint32_t random = rounding_bits(KEY, (uint32_t)i) >> shift & 0xffff;
        cr_assert_eq(got[i], bf16_stochastic(bits, random), "element %d", (int)i);
        cr_assert(got[i] == below || (!is_exact && got[i] == below + 1),
                  "%04x is no neighbor of %a", got[i], wanted[i]);
        up += got[i] != below;
        inexact += !is_exact;
    }
    double share = inexact ? (double)up / (double)inexact : 0.5;
    if (inexact > 1000)
        cr_assert(fabs(share - 0.5) < 2.5 / sqrt((double)inexact), "%g are rounded up", share);
}

static void bf16_moments(struct check *c, const void *given) {
    const struct given *g = given;
    struct tensors t = with_bf16_moments(c, g), wide = t;
    wide.master = check_tensor(c, CHECK_WRITE, DTYPE_F32, g->count, 0, t.master_before);
    wide.copy = wide.remainder = (struct tensor){0};
    wide.moment1 = check_tensor(c, CHECK_WRITE, DTYPE_F32, g->count, 0, t.moment1_before);
    wide.moment2 = check_tensor(c, CHECK_WRITE, DTYPE_F32, g->count, 0, t.moment2_before);
    run(c, g, &t);
    run(c, g, &wide);
    if (!c->verify) return;
    expect_neighbors(c, &t.moment1, &wide.moment1, 0);
    expect_neighbors(c, &t.moment2, &wide.moment2, 16);
    /* The update uses the moments before they are rounded. */
    struct tensor now = check_tensor(c, CHECK_READ, DTYPE_F32, g->count, 0,
                                     read_masters(c, &t.master, &t.remainder));
    check_equal(c, "master", &now, check_read(c, &wide.master));
}

Test(adamw, bf16_moments_are_neighbors) {
    for
        EACH_CASE(i) check_everywhere(bf16_moments, &cases[i]);
}

/* In one piece or in three, from any offset in the flat order: an element's bits do not depend
 * on it. */
static void parts_agree(struct check *c, const void *given) {
    const struct given *g = given;
    struct tensors whole = with_bf16_moments(c, g), t = whole;
    t.master = check_tensor(c, CHECK_WRITE, DTYPE_F32, g->count, 0, whole.master_before);
    t.moment1 = check_tensor(c, CHECK_WRITE, DTYPE_BF16, g->count, 0, whole.moment1_before);
    t.moment2 = check_tensor(c, CHECK_WRITE, DTYPE_BF16, g->count, 0, whole.moment2_before);
    run(c, g, &whole);
    const int64_t borders[] = {0, 1000, 1512, g->count};
    for (int part = 0; part < 3; part++) {
        int64_t first = borders[part], count = borders[part + 1] - first;
        struct tensor master = tensor_range(&t.master, first, count);
        struct tensor moment1 = tensor_range(&t.moment1, first, count);
        struct tensor moment2 = tensor_range(&t.moment2, first, count);
        struct tensor gradients = tensor_range(&t.gradients, first, count);
        CHECK_OP(c, update, .master = &master, .moments = {&moment1, &moment2},
                 .gradients = &gradients, .state = t.state, .inputs = t.inputs, .first = first,
                 .beta1 = BETA1, .beta2 = BETA2, .epsilon = g->epsilon,
                 .weight_decay = g->weight_decay, .lr_factor = 1);
    }
    check_equal(c, "moment1", &t.moment1, check_read(c, &whole.moment1));
    check_equal(c, "moment2", &t.moment2, check_read(c, &whole.moment2));
}

Test(adamw, parts_draw_the_bits_of_the_whole) {
    check_everywhere(parts_agree,
                     &(const struct given){20011, DTYPE_F32, PLAIN, 1, 1, 1e-3f, 0.1f, 1e-8f, 5});
}

/* Several consecutive steps, where the updates counter matters. */
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
    t.inputs = check_memory(c, CHECK_READ, &(struct step_inputs){.lr = 1e-2f}, sizeof *t.inputs);
    for (int step = 0; step < STEPS; step++) {
        struct step_state state = {.loss_scale = 1, .clip_factor = 1, .updates = step};
        struct given g = {.weight_decay = weight_decay, .epsilon = 1e-8f};
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

/* Benchmark of an update of --count parameters, by default those of GPT-2 124M, with each form
 * of its arrays. The last row is a copy of fp32 by the cast operation. */
static const char *const form_names[] = {"fp32",
                                         "bf16 copy",
                                         "split",
                                         "split, bf16 moments",
                                         "split, bf16 gradients",
                                         "bf16 copy, bf16 gradients and moments",
                                         "split, bf16 gradients and moments",
                                         "copying fp32",
                                         NULL};

static size_t time_update(struct bench *b, int variant) {
    static const enum form form_of[] = {PLAIN, COPY_BF16, SPLIT, SPLIT, SPLIT, COPY_BF16, SPLIT};
    static const bool bf16_moments[] = {false, false, false, true, false, true, true};
    static const bool bf16_gradients[] = {false, false, false, false, true, true, true};
    int64_t count = bench_number("count", 124439808, INT64_MAX / 64);
    struct tensor master = arena_tensor(&b->arena, DTYPE_F32, count, 0);
    struct tensor copy = arena_tensor(&b->arena, DTYPE_F32, count, 0);
    if (!form_names[variant + 1]) {
        OP(&b->be, cast, .out = &copy, .in = &master);
        return 8 * (size_t)count;
    }
    enum form form = form_of[variant];
    enum dtype moments = bf16_moments[variant] ? DTYPE_BF16 : DTYPE_F32;
    struct tensor moment1 = arena_tensor(&b->arena, moments, count, 0);
    struct tensor moment2 = arena_tensor(&b->arena, moments, count, 0);
    struct tensor gradients =
        arena_tensor(&b->arena, bf16_gradients[variant] ? DTYPE_BF16 : DTYPE_F32, count, 0);
    copy.dtype = DTYPE_BF16;
    if (form == SPLIT) master.dtype = DTYPE_BF16;
    OP(&b->be, update, .master = &master, .remainder = form == SPLIT ? copy.data : NULL,
       .moments = {&moment1, &moment2}, .copy = form == COPY_BF16 ? &copy : NULL,
       .gradients = &gradients, .state = &(struct step_state){.loss_scale = 1, .clip_factor = 1},
       .inputs = &(struct step_inputs){.lr = 1e-4, .key = {1, 2}}, .beta1 = 0.9, .beta2 = 0.95,
       .epsilon = 1e-8, .weight_decay = 0.1, .lr_factor = 1);
    /* Gradients are read, a copy is written, everything else is both. */
    return tensor_bytes(&gradients) + 2 * (4 * (size_t)count + 2 * tensor_bytes(&moment1)) +
           (form == COPY_BF16 ? tensor_bytes(&copy) : 0);
}
BENCH(adamw, update, form_names, time_update)
