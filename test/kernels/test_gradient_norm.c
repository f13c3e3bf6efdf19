#include <criterion/criterion.h>
#include <float.h>
#include <math.h>

#include "test/kernels/golden.h"

/* Runs both operations on gradients and returns the resulting state. */
static struct step_state norm_of(struct check *c, const struct tensor *gradients, float loss_scale,
                                 float grad_clip) {
    struct step_state state = {.loss_scale = loss_scale,
                               .loss = 3,
                               .gradient_norm = -1,
                               .clip_factor = -1,
                               .found_inf = -1,
                               .growth_tracker = 7,
                               .updates = 8,
                               .skipped = 9,
                               .skipped_in_row = 10,
                               .at_floor = 11};
    struct step_state *place = check_memory(c, CHECK_WRITE, &state, sizeof state);
    int64_t count = backend_squares(&c->be, gradients);
    double *squares = check_memory(c, CHECK_WRITE, NULL, (size_t)count * sizeof *squares);
    CHECK_OP(c, gradient_squares, .squares = squares, .gradients = gradients, .state = place);
    CHECK_OP(c, gradient_norm, .state = place, .squares = squares, .count = count,
             .grad_clip = grad_clip);
    backend_download(&c->be, &state, place, sizeof state);
    cr_assert(state.loss_scale == loss_scale && state.loss == 3 && state.growth_tracker == 7 &&
                  state.updates == 8 && state.skipped == 9 && state.skipped_in_row == 10 &&
                  state.at_floor == 11,
              "more than the norm changed");
    return state;
}

static void check_scalar(struct check *c, const char *kind, double got, double expected) {
    struct tensor tensor = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, &got);
    check_close(c, kind, &tensor, &expected, NULL);
}

struct given {
    int64_t count;
    enum dtype dtype;
    float loss_scale, grad_clip;
};

static void body(struct check *c, const void *given) {
    const struct given *g = given;
    struct tensor gradients = check_normal(c, g->dtype, g->count, 0, 0.5 * (double)g->loss_scale);
    struct step_state state = norm_of(c, &gradients, g->loss_scale, g->grad_clip);
    cr_assert_eq(state.found_inf, 0);
    if (!c->verify) return;
    double *x = check_read(c, &gradients), sum = 0, unscale = (float)(1.0 / (double)g->loss_scale);
    for (int64_t i = 0; i < g->count; i++) sum += x[i] * unscale * x[i] * unscale;
    double clip = g->grad_clip / (sqrt(sum) + 1e-6);
    check_scalar(c, "gradient_norm", state.gradient_norm, sqrt(sum));
    check_scalar(c, "gradient_norm", state.clip_factor, g->grad_clip > 0 ? fmin(1, clip) : 1);
}

Test(gradient_norm, norm_and_clip) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static const int64_t counts[] = {1, 77, 8192, 8193, 100003};
    for (int i = 0; i < 15; i++) {
        struct given g = {counts[i % 5], dtypes[i / 5], i % 2 ? 1024.0f : 3.0f, 1.0f};
        check_everywhere(body, &g);
        g.grad_clip = i % 2 ? 0 : 1e6f; /* clipping off, or a limit out of reach */
        check_everywhere(body, &g);
    }
}

/* One bad value at any index among good ones. */
struct bad {
    double value;
    float loss_scale;
    enum dtype dtype;
    int64_t at;
};

static void body_bad(struct check *c, const void *given) {
    const struct bad *bad = given;
    enum { COUNT = 20011 };
    double *values = check_doubles(c, COUNT);
    for (int i = 0; i < COUNT; i++) values[i] = 0.001 * (i % 100);
    values[bad->at] = bad->value;
    struct tensor gradients = check_tensor(c, CHECK_READ, bad->dtype, COUNT, 0, values);
    struct step_state state = norm_of(c, &gradients, bad->loss_scale, 1);
    cr_assert_eq(state.found_inf, 1, "%g at %ld with scale %g was not found", bad->value,
                 (long)bad->at, (double)bad->loss_scale);
}

Test(gradient_norm, finds_what_is_not_finite) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    static const double values[] = {INFINITY, -INFINITY, NAN};
    static const int64_t places[] = {0, 8191, 8192, 20010};
    for (int i = 0; i < 36; i++) {
        struct bad bad = {values[i % 3], 1024, dtypes[i / 3 % 3], places[i / 9]};
        check_everywhere(body_bad, &bad);
    }
}

/* Finiteness is checked on the unscaled gradient: these overflow only when they are unscaled. */
Test(gradient_norm, finds_overflow_of_unscaling) {
    check_everywhere(body_bad, &(const struct bad){1e38, 0.01f, DTYPE_F32, 5});
    check_everywhere(body_bad, &(const struct bad){1.0, 0x1p-130f, DTYPE_F32, 5});
    check_everywhere(body_bad, &(const struct bad){1.0, 0x1p-130f, DTYPE_BF16, 5});
}

/* Large gradients whose squares overflow fp32 are still finite. */
static void large(struct check *c, const void *given) {
    (void)given;
    double values[100];
    for (int i = 0; i < 100; i++) values[i] = (float)1e30;
    struct tensor gradients = check_tensor(c, CHECK_READ, DTYPE_F32, 100, 0, values);
    struct step_state state = norm_of(c, &gradients, 1, 1);
    cr_assert_eq(state.found_inf, 0);
    if (!c->verify) return;
    check_scalar(c, "gradient_norm", state.gradient_norm, 10 * values[0]);
    check_scalar(c, "gradient_norm", state.clip_factor, 1 / (10 * values[0]));
}

Test(gradient_norm, large_gradients) {
    check_everywhere(large, NULL);
}

/* So many gradients of the same size that their norm is just within fp32, or exceeds it although
 * each of them is finite: no gradient could be clipped by such a norm. */
struct alike {
    double value;
    int64_t count;
    enum dtype dtype;
};

static void body_alike(struct check *c, const void *given) {
    const struct alike *alike = given;
    double *values = check_doubles(c, alike->count);
    for (int64_t i = 0; i < alike->count; i++) values[i] = check_round(alike->value, alike->dtype);
    double norm = sqrt((double)alike->count) * values[0];
    struct tensor gradients = check_tensor(c, CHECK_READ, alike->dtype, alike->count, 0, values);
    struct step_state state = norm_of(c, &gradients, 1, 1);
    cr_assert_eq(state.found_inf, norm > (double)FLT_MAX, "a norm of %g FLT_MAX",
                 norm / (double)FLT_MAX);
    if (c->verify && norm <= (double)FLT_MAX)
        check_scalar(c, "gradient_norm", state.gradient_norm, norm);
}

Test(gradient_norm, near_the_end_of_fp32) {
    static const int64_t counts[] = {2, 4, 15, 16, 77};
    for (int i = 0; i < 5; i++) {
        enum dtype dtype = i % 2 ? DTYPE_BF16 : DTYPE_F32;
        double all_of_it = (double)FLT_MAX / sqrt((double)counts[i]);
        check_everywhere(body_alike, &(const struct alike){0.98 * all_of_it, counts[i], dtype});
        check_everywhere(body_alike, &(const struct alike){1.02 * all_of_it, counts[i], dtype});
        if (counts[i] <= 16)
            check_everywhere(body_alike, &(const struct alike){0x1.fep127, counts[i], dtype});
    }
}

/* Small gradients whose squares underflow fp32 are still not zero. */
static void small(struct check *c, const void *given) {
    enum { COUNT = 9000 };
    double *values = check_doubles(c, COUNT), sum = 0;
    for (int i = 0; i < COUNT; i++) values[i] = check_round(1e-30 * (i % 7), DTYPE_BF16);
    for (int i = 0; i < COUNT; i++) sum += values[i] * values[i];
    struct tensor gradients =
        check_tensor(c, CHECK_READ, *(const enum dtype *)given, COUNT, 0, values);
    struct step_state state = norm_of(c, &gradients, 1, 1);
    cr_assert_eq(state.found_inf, 0);
    if (!c->verify) return;
    check_scalar(c, "gradient_norm", state.gradient_norm, sqrt(sum));
}

Test(gradient_norm, small_gradients) {
    check_everywhere(small, &(const enum dtype){DTYPE_F32});
    check_everywhere(small, &(const enum dtype){DTYPE_BF16});
}

/* So many that a GPU's second pass has more parts to add than threads; the last must count like
 * the first. Optionally starts at an odd offset. */
static void many(struct check *c, const void *given) {
    const int64_t *odd = given, count = 520 * 16384 + 3;
    double *noise = check_doubles(c, (count + *odd) / 2 + 1);
    float *values = (float *)(void *)noise;
    values[*odd] = 3;
    values[*odd + count - 1] = 4;
    if (*odd) values[0] = NAN;
    void *memory = check_memory(c, CHECK_READ, values, (size_t)(count + *odd) * sizeof(float));
    struct tensor all = {memory, DTYPE_F32, 1, {count + *odd}};
    struct tensor gradients = tensor_range(&all, *odd, count);
    struct step_state state = norm_of(c, &gradients, 1, 1);
    cr_assert_eq(state.found_inf, 0);
    cr_assert_eq(state.gradient_norm, 5);
}

Test(gradient_norm, many_gradients) {
    check_everywhere(many, &(const int64_t){0});
    check_everywhere(many, &(const int64_t){1});
}

static void zero(struct check *c, const void *given) {
    (void)given;
    const double zeros[3] = {0};
    struct tensor gradients = check_tensor(c, CHECK_READ, DTYPE_F32, 3, 0, zeros);
    struct step_state state = norm_of(c, &gradients, 1024, 1);
    cr_assert_eq(state.gradient_norm, 0);
    cr_assert_eq(state.clip_factor, 1);
    cr_assert_eq(state.found_inf, 0);
}

Test(gradient_norm, zero_gradients) {
    check_everywhere(zero, NULL);
}

static void golden(struct check *c, const void *given) {
    (void)given;
    static const char *const names[2][3] = {
        {"clip.gradients", "clip.norm", "clip.clipped"},
        {"clip_inactive.gradients", "clip_inactive.norm", "clip_inactive.clipped"}};
    for (int i = 0; i < 2; i++) {
        struct tensor gradients = golden_tensor(c, CHECK_READ, names[i][0]);
        struct step_state state = norm_of(c, &gradients, 1, 1);
        if (!c->verify) continue;
        check_scalar(c, "golden_sum", state.gradient_norm, golden_values(c, names[i][1])[0]);
        double *clipped = check_read(c, &gradients);
        for (int64_t n = 0; n < tensor_count(&gradients); n++) clipped[n] *= state.clip_factor;
        struct tensor result =
            check_tensor(c, CHECK_READ, DTYPE_F32, tensor_count(&gradients), 0, clipped);
        golden_close(c, "golden_sum", &result, names[i][2], NULL);
    }
}

Test(gradient_norm, golden) {
    check_everywhere(golden, NULL);
}
