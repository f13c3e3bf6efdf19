/* Moments in 8 bits: codes, and updates that read and write them, against torchao
 * (test/golden/moments.py) and formulas in fp64. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/moment_blocks.h"
#include "test/kernels/bench.h"
#include "test/kernels/check.h"
#include "test/safetensors_find.h"

enum { COUNT = 4096, BLOCKS = COUNT / MOMENT_BLOCK, STEPS = 4 }; /* of the fixture */

/* Largest relative error of the value of a code, and of a step between codes within which a value
 * in the middle may be rounded to either (kernels/moment_code.h). */
static const double VALUE_ERROR = 0x1p-20, MIDDLE = 0x1p-15;

/* Returns a tensor of the fixture, to be freed. */
static void *golden_data(const char *name) {
    struct safetensors file;
    struct error error;
    cr_assert(safetensors_open(&file, "test/golden/moments.safetensors", &error) == 0, "%s",
              error.text);
    const struct safetensors_entry *entry = safetensors_find(&file, name);
    cr_assert_not_null(entry, "no %s", name);
    void *data = safetensors_data(&file, entry);
    cr_assert_not_null(data);
    safetensors_close(&file);
    return data;
}

static void *golden_part(int step, const char *part) {
    char name[32];
    snprintf(name, sizeof name, "%d.%s", step, part);
    return golden_data(name);
}

/* The levels of the codes of a moment. */
struct levels {
    double values[256];
    int count;
};

static struct levels levels_of(int moment) {
    struct levels levels = {.count = moment ? 256 : 129};
    float *values = golden_data(moment ? "unsigned" : "signed");
    for (int i = 0; i < levels.count; i++) levels.values[i] = (double)values[moment ? i : 127 + i];
    free(values);
    return levels;
}

/* Returns the distance of a magnitude from the values that are rounded to a level, as a part of
 * the step between levels. */
static double distance(const struct levels *l, int level, double magnitude) {
    const double *v = l->values, at = v[level];
    cr_assert(level >= 0 && level < l->count, "level %d of %g", level, magnitude);
    if (level > 0 && magnitude < (v[level - 1] + at) / 2)
        return ((v[level - 1] + at) / 2 - magnitude) / (at - v[level - 1]);
    if (level + 1 < l->count && magnitude > (at + v[level + 1]) / 2)
        return (magnitude - (at + v[level + 1]) / 2) / (v[level + 1] - at);
    return 0;
}

static void expect_near(const struct levels *l, float magnitude, bool is_signed) {
    const int level = is_signed ? moment_level(magnitude, 1) : moment_level(magnitude, 0);
    const double d = distance(l, level, (double)magnitude);
    cr_assert_leq(d, MIDDLE, "%a is rounded to level %d, 2^%.1f too far", (double)magnitude, level,
                  log2(d));
}

Test(moments, codes_are_those_of_torchao) {
    for (int moment = 0; moment < 2; moment++) {
        const struct levels l = levels_of(moment);
        float *values = golden_data(moment ? "unsigned" : "signed");
        for (int code = 0; code < 256; code++) {
            float got = moment ? moment_value(code, 0) : moment_value(code, 1);
            cr_expect_leq(fabs((double)got - (double)values[code]),
                          VALUE_ERROR * fabs((double)values[code]), "code %d: %a", code,
                          (double)got);
            const int level = moment ? code : abs(code - 127);
            cr_expect_eq(moment ? moment_code(level, 0, 0) : moment_code(level, code < 127, 1),
                         code);
        }
        free(values);
        for (uint32_t bits = 0; bits <= f32_bits(1); bits += 997)
            expect_near(&l, f32_of_bits(bits), !moment);
        for (int i = 1; i < l.count; i++) {
            float middle = (float)((l.values[i - 1] + l.values[i]) / 2);
            for (int k = -64; k <= 64; k++)
                expect_near(&l, f32_of_bits(f32_bits(middle) + (uint32_t)k), !moment);
        }
        expect_near(&l, 0, !moment);
        expect_near(&l, 1, !moment);
    }
    cr_expect_eq(moment_code(128, 1, 1), 0, "the negative of 1 is not the largest negative value");
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        int level = is_signed ? moment_level(NAN, 1) : moment_level(NAN, 0);
        cr_expect(level >= 0 && level < 256);
    }
}

/* ---- updates */

struct moments {
    struct tensor codes[2];
    struct moment_scales scales;
};

static struct tensor codes_tensor(struct check *c, const uint8_t *codes) {
    void *data = check_memory(c, CHECK_WRITE, codes, COUNT);
    return (struct tensor){data, DTYPE_DYNAMIC8, 1, {COUNT}};
}

/* Returns the moments of the fixture before a step. */
static struct moments moments_before(struct check *c, int step) {
    struct moments m = {0};
    char name[16];
    for (int i = 0; i < 2; i++) {
        uint8_t *codes = calloc(COUNT, 1);
        float *scales = calloc(BLOCKS, sizeof *scales);
        if (step > 0) {
            free(codes), free(scales);
            snprintf(name, sizeof name, "codes%d", i);
            codes = golden_part(step - 1, name);
            snprintf(name, sizeof name, "scales%d", i);
            scales = golden_part(step - 1, name);
        }
        m.codes[i] = codes_tensor(c, codes);
        m.scales.of[i] = check_memory(c, CHECK_WRITE, scales, BLOCKS * sizeof *scales);
        free(codes), free(scales);
    }
    return m;
}

static void download(struct check *c, void *to, const void *from, size_t bytes) {
    backend_download(&c->be, to, from, bytes);
}

/* Computes a moment after a step in fp64, from torchao's codes before it. */
static void exact_moment(double *values, int moment, int step, const uint16_t *gradients) {
    const struct levels l = levels_of(moment);
    char name[16];
    snprintf(name, sizeof name, "codes%d", moment);
    uint8_t *codes = step ? golden_part(step - 1, name) : NULL;
    snprintf(name, sizeof name, "scales%d", moment);
    float *scales = step ? golden_part(step - 1, name) : NULL;
    for (int i = 0; i < COUNT; i++) {
        const double g = (double)f32_from_bf16(gradients[i]);
        const int level = !step ? 0 : moment ? codes[i] : codes[i] - 127;
        double before = l.values[abs(level)] * (level < 0 ? -1 : 1);
        if (step) before *= (double)scales[i / MOMENT_BLOCK];
        values[i] = moment ? 0.95 * before + 0.05 * g * g : 0.9 * before + 0.1 * g;
    }
    free(codes), free(scales);
}

/* Expects the scales and codes that torchao has after a step: its code, or if the value is in the
 * middle between two, which is common for 16-bit gradients, the other one. */
static void expect_moment(struct check *c, const struct moments *m, int moment, int step,
                          const uint16_t *gradients) {
    uint8_t codes[COUNT];
    float scales[BLOCKS];
    double exact[COUNT];
    char name[16];
    const struct levels l = levels_of(moment);
    snprintf(name, sizeof name, "codes%d", moment);
    uint8_t *wanted = golden_part(step, name);
    snprintf(name, sizeof name, "scales%d", moment);
    float *wanted_scales = golden_part(step, name);
    download(c, codes, m->codes[moment].data, sizeof codes);
    download(c, scales, m->scales.of[moment], sizeof scales);
    exact_moment(exact, moment, step, gradients);
    for (int i = 0; i < BLOCKS; i++)
        cr_assert(fabsf(scales[i] - wanted_scales[i]) <= (float)VALUE_ERROR * wanted_scales[i],
                  "step %d, moment %d: scale %d is %a, not %a", step, moment, i, (double)scales[i],
                  (double)wanted_scales[i]);
    for (int i = 0; i < COUNT; i++) {
        if (codes[i] == wanted[i]) continue;
        const double magnitude = fabs(exact[i]) / (double)scales[i / MOMENT_BLOCK];
        const int level = moment ? codes[i] : abs(codes[i] - 127);
        cr_assert(abs(codes[i] - wanted[i]) == 1 && distance(&l, level, magnitude) <= 2 * MIDDLE,
                  "step %d, moment %d: code %d is %d, not %d", step, moment, i, codes[i],
                  wanted[i]);
    }
    free(wanted), free(wanted_scales);
}

/* Each step begins with torchao's state. */
static void follows_torchao(struct check *c, const void *given) {
    (void)given;
    const struct step_inputs inputs = {.lr = 1e-2};
    for (int step = 0; step < STEPS; step++) {
        const struct step_state state = {.loss_scale = 1, .clip_factor = 1, .updates = step};
        float *before = step ? golden_part(step - 1, "weight") : golden_data("initial");
        float *after = golden_part(step, "weight"), now[COUNT];
        uint16_t *gradients = golden_part(step, "gradient");
        struct moments m = moments_before(c, step);
        struct tensor master = {
            check_memory(c, CHECK_WRITE, before, sizeof now), DTYPE_F32, 1, {COUNT}};
        struct tensor gradient = {
            check_memory(c, CHECK_READ, gradients, COUNT * 2), DTYPE_BF16, 1, {COUNT}};
        CHECK_OP(c, update, .master = &master, .moments = {&m.codes[0], &m.codes[1]},
                 .scales = m.scales, .gradients = &gradient,
                 .state = check_memory(c, CHECK_READ, &state, sizeof state),
                 .inputs = check_memory(c, CHECK_READ, &inputs, sizeof inputs), .beta1 = 0.9,
                 .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .lr_factor = 1);
        if (c->verify) {
            for (int i = 0; i < 2; i++) expect_moment(c, &m, i, step, gradients);
            download(c, now, master.data, sizeof now);
            /* The error of both moments' values, and 4 roundings of the weight. */
            for (int i = 0; i < COUNT; i++)
                cr_assert_leq(fabs((double)now[i] - (double)after[i]),
                              fabs((double)after[i] - (double)before[i]) * 3 * VALUE_ERROR +
                                  fabs((double)before[i]) * 0x1p-22,
                              "step %d: weight %d is %a, not %a", step, i, (double)now[i],
                              (double)after[i]);
        }
        free(before), free(after), free(gradients);
    }
}
Test(moments, adamw_follows_torchao) {
    check_everywhere(follows_torchao, NULL);
}

/* Computes a gradient whose first moment (moment = 1: second moment) is near the border below a
 * level, up to 15 steps of fp32 to either side. The first element of each block sets the scale to
 * 1. */
static double border_gradient(const struct levels *l, int moment, int i) {
    if (i % MOMENT_BLOCK == 0) return 1;
    const int level = 1 + i % (l->count - 1), ulps = i / (l->count - 1) * (moment ? 2 : 1) - 15;
    const double middle = (l->values[level - 1] + l->values[level]) / 2;
    const float border = (float)(moment ? sqrt(middle) : middle);
    return (double)f32_of_bits(f32_bits(border) + (uint32_t)ulps) * (i % 2 ? -1 : 1);
}

/* Without moving averages (beta = 0) the moments are g and g^2, which are rounded to the nearest
 * level at every border between levels. */
static void borders_body(struct check *c, const void *given) {
    const int near = *(const int *)given;
    const struct step_state state = {.loss_scale = 1, .clip_factor = 1};
    const struct step_inputs inputs = {.lr = 1e-2};
    const struct levels l[2] = {levels_of(0), levels_of(1)};
    struct moments m = moments_before(c, 0);
    double g[COUNT];
    for (int i = 0; i < COUNT; i++) g[i] = border_gradient(&l[near], near, i);
    struct tensor master = check_sum(c, DTYPE_F32, COUNT, 0);
    struct tensor gradients = check_tensor(c, CHECK_READ, DTYPE_F32, COUNT, 0, g);
    CHECK_OP(c, update, .master = &master, .moments = {&m.codes[0], &m.codes[1]},
             .scales = m.scales, .gradients = &gradients,
             .state = check_memory(c, CHECK_READ, &state, sizeof state),
             .inputs = check_memory(c, CHECK_READ, &inputs, sizeof inputs), .beta1 = 0, .beta2 = 0,
             .epsilon = 1e-8, .lr_factor = 1);
    if (!c->verify) return;
    uint8_t codes[2][COUNT];
    for (int i = 0; i < 2; i++) download(c, codes[i], m.codes[i].data, COUNT);
    for (int i = 0; i < COUNT; i++) {
        const double squared = distance(&l[1], codes[1][i], g[i] * g[i]);
        cr_assert_leq(squared, 2 * MIDDLE, "%a: code %d of its square", g[i], codes[1][i]);
        if (codes[0][i] == 0) continue; /* -1 has no code */
        const double d = distance(&l[0], abs(codes[0][i] - 127), fabs(g[i]));
        cr_assert_leq(d, MIDDLE, "%a: code %d", g[i], codes[0][i]);
        cr_assert(codes[0][i] == 127 || (codes[0][i] < 127) == (g[i] < 0));
    }
}
Test(moments, adamw_rounds_to_the_nearest_code) {
    for (int moment = 0; moment < 2; moment++) check_everywhere(borders_body, &(const int){moment});
}

/* The moment of a rule, in fp64, and its direction. */
static double rule_step(enum update_kind kind, double g, double w, double *m) {
    const double before = *m;
    if (kind == UPDATE_SGD) return *m = 0.9 * before + (g + 0.1 * w);
    if (kind == UPDATE_DIRECTION) return *m = 0.9 * before + 0.1 * g;
    *m = 0.95 * before + 0.05 * g;
    const double sum = 0.9 * before + 0.1 * g;
    return (sum > 0) - (sum < 0);
}

/* Values that are written are close to those of fp64, and codes are next to the moment. */
static void momentum_body(struct check *c, const void *given) {
    const enum update_kind kind = *(const enum update_kind *)given;
    const bool direction = kind == UPDATE_DIRECTION;
    const struct step_state state = {.loss_scale = 1, .clip_factor = 1};
    const struct step_inputs inputs = {.lr = 0.01};
    struct moments m = moments_before(c, 2);
    uint8_t codes[2][COUNT];
    float scales[2][BLOCKS];
    download(c, codes[0], m.codes[0].data, COUNT);
    download(c, scales[0], m.scales.of[0], sizeof scales[0]);
    struct tensor gradients = check_normal(c, DTYPE_F32, COUNT, 0, 0.3);
    struct tensor master = check_sum(c, DTYPE_F32, COUNT, 0), out = {0};
    if (direction) out = check_output(c, DTYPE_F32, COUNT, 0);
    double *before = check_read(c, &master), *gradient = check_read(c, &gradients);
    CHECK_OP(c, update, .kind = kind, .master = direction ? NULL : &master,
             .moments = {&m.codes[0]}, .scales = m.scales, .gradients = &gradients,
             .direction = direction ? &out : NULL,
             .state = check_memory(c, CHECK_READ, &state, sizeof state),
             .inputs = check_memory(c, CHECK_READ, &inputs, sizeof inputs), .beta1 = 0.9,
             .beta2 = 0.95, .weight_decay = 0.1, .lr_factor = 1);
    if (!c->verify) return;
    const struct levels l = levels_of(0);
    const double *now = check_read(c, direction ? &out : &master);
    download(c, codes[1], m.codes[0].data, COUNT);
    download(c, scales[1], m.scales.of[0], sizeof scales[1]);
    for (int i = 0; i < COUNT; i++) {
        double value = l.values[abs(codes[0][i] - 127)] * (codes[0][i] < 127 ? -1 : 1);
        double moment = value * (double)scales[0][i / MOMENT_BLOCK], size = fabs(moment);
        const double d = rule_step(kind, gradient[i], before[i], &moment);
        const double keep = kind == UPDATE_SGD ? 1 : 1 - 0.01 * 0.1;
        size += fabs(gradient[i]) + fabs(before[i]);
        cr_assert_leq(fabs(now[i] - (direction ? d : keep * before[i] - 0.01 * d)),
                      2 * VALUE_ERROR * size, "element %d: %g", i, now[i]);
        const int level = abs(codes[1][i] - 127);
        const double magnitude = fabs(moment) / (double)scales[1][i / MOMENT_BLOCK];
        if (level == 127 && codes[1][i] < 127 && magnitude > l.values[127]) continue;
        /* The largest moment decides the scale, so its error matters for the others too. */
        cr_assert_leq(distance(&l, level, magnitude), 2 * MIDDLE + 2 * VALUE_ERROR * size * 128,
                      "element %d: level %d of %g", i, level, magnitude);
        cr_assert(level == 0 || (codes[1][i] < 127) == (moment < 0));
    }
}
Test(moments, momentum_rules) {
    for (int kind = UPDATE_SGD; kind <= UPDATE_DIRECTION; kind++)
        check_everywhere(momentum_body, &(const enum update_kind){(enum update_kind)kind});
}

/* One update, stochastic or not, of elements first .. first + count. */
static void update_part(struct check *c, const struct tensor *master, const struct moments *m,
                        const struct tensor *gradients, int64_t first, int64_t count) {
    const struct step_state state = {.loss_scale = 1, .clip_factor = 1, .updates = 2};
    const struct step_inputs inputs = {.lr = 1e-2, .key = {7, 11}};
    struct tensor w = tensor_range(master, first, count), g = tensor_range(gradients, first, count);
    struct tensor codes[2];
    struct moment_scales scales = m->scales;
    for (int i = 0; i < 2; i++) {
        codes[i] = tensor_range(&m->codes[i], first, count);
        scales.of[i] += first / MOMENT_BLOCK;
    }
    CHECK_OP(c, update, .master = &w, .moments = {&codes[0], &codes[1]}, .scales = scales,
             .gradients = &g, .state = check_memory(c, CHECK_READ, &state, sizeof state),
             .inputs = check_memory(c, CHECK_READ, &inputs, sizeof inputs), .first = first,
             .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .lr_factor = 1);
}

/* Stochastic rounding, in one piece or two: to the values beside the one in fp64, as often as keeps
 * the mean. */
static void stochastic_body(struct check *c, const void *given) {
    (void)given;
    struct tensor gradients = check_normal(c, DTYPE_F32, COUNT, 0, 0.3);
    struct tensor master = check_sum(c, DTYPE_F32, COUNT, 0);
    double *initial = check_read(c, &master), *gradient = check_read(c, &gradients), sum = 0;
    struct tensor other = check_tensor(c, CHECK_WRITE, DTYPE_F32, COUNT, 0, initial);
    struct moments whole = moments_before(c, 0), parts = moments_before(c, 0);
    whole.scales.stochastic = parts.scales.stochastic = true;
    update_part(c, &master, &whole, &gradients, 0, COUNT);
    update_part(c, &other, &parts, &gradients, 0, 5 * MOMENT_BLOCK);
    update_part(c, &other, &parts, &gradients, 5 * MOMENT_BLOCK, COUNT - 5 * MOMENT_BLOCK);
    if (!c->verify) return;
    for (int moment = 0, n = 0; moment < 2; moment++, sum = 0, n = 0) {
        uint8_t codes[2][COUNT];
        float scales[BLOCKS];
        const struct levels l = levels_of(moment);
        download(c, codes[0], whole.codes[moment].data, COUNT);
        download(c, codes[1], parts.codes[moment].data, COUNT);
        download(c, scales, whole.scales.of[moment], sizeof scales);
        cr_assert_arr_eq(codes[0], codes[1], COUNT);
        for (int i = 0; i < COUNT; i++) {
            const double g = gradient[i], exact = moment ? 0.05 * g * g : 0.1 * fabs(g);
            const double magnitude = exact / (double)scales[i / MOMENT_BLOCK];
            const int level = moment ? codes[0][i] : abs(codes[0][i] - 127);
            if (magnitude > l.values[l.count - 2]) continue; /* -1 has no code */
            int low = 0;
            while (l.values[low + 1] <= magnitude) low++;
            const double step = l.values[low + 1] - l.values[low];
            const double part = (magnitude - l.values[low]) / step;
            cr_assert(level == low || level == low + 1 || fmin(part, 1 - part) < MIDDLE,
                      "element %d: level %d of %g", i, level, magnitude);
            sum += level - low - part, n++;
        }
        /* The mean of errors whose variance is at most 1/4 each; their 5 standard deviations. */
        cr_assert_leq(fabs(sum), 5 * sqrt(n / 4.0), "%g of %d are rounded up too often", sum, n);
    }
}
Test(moments, stochastic_rounding_keeps_the_mean) {
    check_everywhere(stochastic_body, NULL);
}

/* Blocks of zeros keep the smallest scale, and a skipped step keeps all bits. */
static void skipped_body(struct check *c, const void *given) {
    (void)given;
    const struct step_state state = {.loss_scale = 1, .clip_factor = 1, .found_inf = 1};
    const struct step_inputs inputs = {.lr = 1e-2};
    struct moments m = moments_before(c, 1);
    struct tensor master = check_sum(c, DTYPE_F32, COUNT, 0);
    struct tensor gradients = check_normal(c, DTYPE_F32, COUNT, 0, 1);
    uint8_t codes[COUNT];
    CHECK_OP(c, update, .master = &master, .moments = {&m.codes[0], &m.codes[1]},
             .scales = m.scales, .gradients = &gradients,
             .state = check_memory(c, CHECK_READ, &state, sizeof state),
             .inputs = check_memory(c, CHECK_READ, &inputs, sizeof inputs), .beta1 = 0.9,
             .beta2 = 0.95, .epsilon = 1e-8, .lr_factor = 1);
    if (!c->verify) return;
    uint8_t *wanted = golden_part(0, "codes1");
    download(c, codes, m.codes[1].data, COUNT);
    cr_expect_arr_eq(codes, wanted, COUNT);
    free(wanted);
}
Test(moments, skipped_step_changes_nothing) {
    check_everywhere(skipped_body, NULL);
}

/* Benchmark of an update of --count parameters, by default those of GPT-2 124M. */
static const char *const names[] = {"fp32",        "bf16",        "int8", "int8, stochastic",
                                    "split, fp32", "split, int8", NULL};

static size_t time_update(struct bench *b, int variant) {
    static const enum dtype dtypes[] = {DTYPE_F32,      DTYPE_BF16, DTYPE_DYNAMIC8,
                                        DTYPE_DYNAMIC8, DTYPE_F32,  DTYPE_DYNAMIC8};
    int64_t count = bench_number("count", 124439808, INT64_MAX / 64) / MOMENT_BLOCK * MOMENT_BLOCK;
    const bool split = variant >= 4, coded = dtypes[variant] == DTYPE_DYNAMIC8;
    struct tensor master = arena_tensor(&b->arena, split ? DTYPE_BF16 : DTYPE_F32, count, 0);
    struct tensor remainder = arena_tensor(&b->arena, DTYPE_BF16, split ? count : 0, 0);
    struct tensor gradients = arena_tensor(&b->arena, DTYPE_F32, count, 0);
    struct tensor moments[2], scales[2];
    struct moment_scales scaled = {.stochastic = variant == 3};
    for (int i = 0; i < 2; i++) {
        moments[i] = arena_tensor(&b->arena, dtypes[variant], count, 0);
        scales[i] = arena_tensor(&b->arena, DTYPE_F32, coded ? count / MOMENT_BLOCK : 0, 0);
        if (coded) scaled.of[i] = scales[i].data ? scales[i].data : (float *)&scales;
    }
    OP(&b->be, update, .master = &master, .remainder = split ? remainder.data : NULL,
       .moments = {&moments[0], &moments[1]}, .scales = scaled, .gradients = &gradients,
       .state = &(struct step_state){.loss_scale = 1, .clip_factor = 1},
       .inputs = &(struct step_inputs){.lr = 1e-4, .key = {1, 2}}, .beta1 = 0.9, .beta2 = 0.95,
       .epsilon = 1e-8, .weight_decay = 0.1, .lr_factor = 1);
    return tensor_bytes(&gradients) + 2 * (4 * (size_t)count + 2 * tensor_bytes(&moments[0]));
}
BENCH(adamw, moments, names, time_update)
