#include <criterion/criterion.h>
#include <math.h>

#include "test/kernels/golden.h"

struct shape {
    int64_t rows, vocabulary, padded;
    enum dtype dtype;
    double spread; /* standard deviation of the logits */
    double cap;    /* of softcap; 0: none */
};

static const struct shape shapes[] = {
    {26, 37, 64, DTYPE_F32, 3, 0},
    {1, 1, 1, DTYPE_F32, 1, 0},
    {77, 61, 64, DTYPE_BF16, 3, 0},
    {33, 61, 128, DTYPE_F16, 3, 0},
    {5, 50257, 50304, DTYPE_F32, 4, 0},
    {3, 50257, 50304, DTYPE_BF16, 4, 0},
    {3, 50257, 50304, DTYPE_F16, 4, 0},
    {9, 513, 513, DTYPE_F32, 100, 0},
    {9, 512, 1024, DTYPE_BF16, 100, 0},
    /* Sizes around the border between few and many threads, rows that cannot be read in packs,
     * and one that is too long for a GPU's shared memory. */
    {2, 4096, 4096, DTYPE_F16, 3, 0},
    {2, 4097, 4104, DTYPE_BF16, 3, 0},
    {2, 50257, 50257, DTYPE_BF16, 4, 0},
    {3, 1023, 1028, DTYPE_BF16, 3, 0},
    {2, 70001, 70016, DTYPE_F32, 3, 0},
    {1, 50304, 50304, DTYPE_BF16, 4, 0},
    {2, 128256, 128256, DTYPE_BF16, 4, 0},
    /* More rows than blocks that a GPU holds, with columns for some threads only. */
    {300, 77, 80, DTYPE_BF16, 3, 0},
    {300, 4, 4, DTYPE_F32, 3, 0},
    /* Logits with a soft cap, from far below it to far above. */
    {26, 37, 64, DTYPE_F32, 40, 30},
    {33, 61, 128, DTYPE_F16, 20, 30},
    {3, 1023, 1028, DTYPE_BF16, 10, 30},
    {2, 50257, 50304, DTYPE_BF16, 20, 30},
    {3, 4097, 4097, DTYPE_F32, 5, 7.3f},
    {2, 70001, 70016, DTYPE_F32, 20, 30},
};
#define EACH_SHAPE(s) (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)

/* The padding holds NaN and large numbers and must not be read. */
static struct tensor make_logits(struct check *c, const struct shape *s, enum check_use use) {
    struct tensor random = check_normal(c, DTYPE_F32, s->rows, s->padded, s->spread);
    double *values = check_read(c, &random);
    for (int64_t i = 0; i < s->rows * s->padded; i++) {
        if (s->cap > 0) values[i] = s->cap * tanh(values[i] / s->cap);
        if (i % s->padded >= s->vocabulary) values[i] = i % 2 ? NAN : 60000;
    }
    return check_tensor(c, use, s->dtype, s->rows, s->padded, values);
}

static const struct step_inputs *weighted(struct check *c, float weight) {
    const struct step_inputs inputs = {.loss_weight = weight};
    return check_memory(c, CHECK_READ, &inputs, sizeof inputs);
}

struct row {
    double max, log_sum;
};

static struct row row_of(const double *logits, int64_t count) {
    struct row row = {-INFINITY, 0};
    double sum = 0;
    for (int64_t i = 0; i < count; i++) row.max = fmax(row.max, logits[i]);
    for (int64_t i = 0; i < count; i++) sum += exp(logits[i] - row.max);
    row.log_sum = row.max + log(sum);
    return row;
}

static void verify_losses(struct check *c, const struct shape *s, const double *x,
                          const int32_t *targets, const struct tensor *losses) {
    double *expected = check_doubles(c, s->rows), *size = check_doubles(c, s->rows);
    for (int64_t r = 0; r < s->rows; r++) {
        struct row row = row_of(x + r * s->padded, s->vocabulary);
        double target = x[r * s->padded + targets[r]];
        expected[r] = row.log_sum - target;
        size[r] = fabs(row.max) + fabs(row.log_sum - row.max) + fabs(target) + 1;
    }
    check_close(c, "cross_entropy_loss", losses, expected, size);
}

/* x becomes (softmax - one hot) * factor, times the slope of softcap, and 0 in the padding. An
 * exponential below 2^-126 may be flushed to 0, which then counts like an error of 2^-24 of 2^-102.
 */
static void verify_gradient(struct check *c, const struct shape *s, double *x,
                            const int32_t *targets, double factor, const struct tensor *logits) {
    double *size = check_doubles(c, s->rows * s->padded);
    for (int64_t r = 0; r < s->rows; r++) {
        double *row = x + r * s->padded, log_sum = row_of(row, s->vocabulary).log_sum;
        for (int64_t v = 0; v < s->padded; v++) {
            bool inside = v < s->vocabulary, hit = v == targets[r];
            double p = inside ? exp(row[v] - log_sum) : 0;
            double distance = inside ? fabs(row[v]) + fabs(log_sum) : 0;
            size[r * s->padded + v] = fabs(factor) * (p * (1 + distance) + hit + 0x1p-102);
            double y = s->cap > 0 && inside ? row[v] / s->cap : 0;
            size[r * s->padded + v] *= 1 + y * y;
            row[v] = factor * (p - hit) * (1 - y * y);
        }
    }
    check_close(c, "cross_entropy_gradient", logits, x, size);
    double *got = check_read(c, logits);
    for (int64_t i = 0; i < s->rows * s->padded; i++)
        cr_assert(i % s->padded < s->vocabulary || got[i] == 0, "padding is not 0");
}

static void forward_only(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensor logits = make_logits(c, s, CHECK_READ); /* so they must not change */
    const int32_t *targets;
    const int32_t *place = check_tokens(c, s->rows, (int32_t)s->vocabulary, &targets);
    struct tensor losses = check_output(c, DTYPE_F32, s->rows, 0);
    CHECK_OP(c, cross_entropy, .losses = losses.data, .logits = &logits, .targets = place,
             .vocab_size = s->vocabulary, .softcap = (float)s->cap);
    if (c->verify) verify_losses(c, s, check_read(c, &logits), targets, &losses);
}

Test(cross_entropy, forward_only) {
    for
        EACH_SHAPE(s) check_everywhere(forward_only, &shapes[s]);
}

/* Replaces logits by their gradient and returns the losses. */
static struct tensor run_backward(struct check *c, const struct shape *s,
                                  const struct tensor *logits, const int32_t *targets, double scale,
                                  double weight) {
    struct tensor losses = check_output(c, DTYPE_F32, s->rows, 0);
    struct tensor loss_scale = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, &scale);
    const struct step_inputs *inputs = weighted(c, (float)weight);
    CHECK_OP(c, cross_entropy, .losses = losses.data, .logits = logits, .targets = targets,
             .loss_scale = loss_scale.data, .inputs = inputs, .vocab_size = s->vocabulary,
             .softcap = (float)s->cap);
    return losses;
}

static void backward(struct check *c, const void *given) {
    const struct shape *s = given;
    const double scale = 1024, weight = (float)(1.0 / (double)(3 * s->rows));
    struct tensor logits = make_logits(c, s, CHECK_WRITE);
    double *x = check_read(c, &logits);
    const int32_t *targets;
    const int32_t *place = check_tokens(c, s->rows, (int32_t)s->vocabulary, &targets);
    struct tensor losses = run_backward(c, s, &logits, place, scale, weight);
    if (!c->verify) return;
    verify_losses(c, s, x, targets, &losses);
    verify_gradient(c, s, x, targets, scale * weight, &logits);
}

Test(cross_entropy, backward) {
    for
        EACH_SHAPE(s) check_everywhere(backward, &shapes[s]);
}

/* A row of GPT-2's vocabulary in 16 bits stays in the 99 KB that a block of sm_86, sm_89 and sm_120
 * can have: a multiprocessor then holds one such block. */
Test(cross_entropy, row_kept_in_99_KB) {
    const struct shape gpt2 = {2, 50257, 50304, DTYPE_BF16, 4, 0};
    cr_assert_eq(check_on_gpu(86, 1, backward, &gpt2), 1);
}

/* Rows whose target does not count contribute nothing, whatever they hold, and the other rows
 * get the same results as without them. */
static void ignored(struct check *c, const void *given) {
    const struct shape *s = given;
    const double scale = 1024, weight = 1.0 / 64;
    struct tensor random = make_logits(c, s, CHECK_READ);
    double *x = check_read(c, &random);
    for (int64_t i = 0; i < s->padded; i++) x[i] = i % 2 ? NAN : INFINITY;
    struct tensor logits = check_tensor(c, CHECK_WRITE, s->dtype, s->rows, s->padded, x);
    const int32_t *tokens;
    check_tokens(c, s->rows, (int32_t)s->vocabulary, &tokens);
    int32_t *targets = (int32_t *)(void *)check_doubles(c, s->rows);
    for (int64_t r = 0; r < s->rows; r++) targets[r] = r % 3 == 0 ? -1 - (int32_t)r : tokens[r];
    const int32_t *place = check_memory(c, CHECK_READ, targets, (size_t)s->rows * sizeof *targets);
    struct tensor losses = run_backward(c, s, &logits, place, scale, weight);
    if (!c->verify) return;
    double *got = check_read(c, &logits), *loss = check_read(c, &losses);
    for (int64_t r = 0; r < s->rows; r++) {
        struct shape one = {1, s->vocabulary, s->padded, s->dtype, s->spread, s->cap};
        struct tensor row = tensor_slice(&logits, r, 1), row_loss = tensor_range(&losses, r, 1);
        if (targets[r] >= 0) {
            verify_losses(c, &one, x + r * s->padded, targets + r, &row_loss);
            verify_gradient(c, &one, x + r * s->padded, targets + r, scale * weight, &row);
            continue;
        }
        cr_assert(loss[r] == 0, "the loss of row %d", (int)r);
        for (int64_t v = 0; v < s->padded; v++)
            cr_assert(got[r * s->padded + v] == 0, "row %d, column %d", (int)r, (int)v);
    }
}

Test(cross_entropy, ignored_targets) {
    for
        EACH_SHAPE(s) check_everywhere(ignored, &shapes[s]);
}

/* Rows whose targets and losses are elsewhere: place 2 R - 2 i - 1 of row i, and none of each third
 * row, whose gradient is 0. */
static void placed(struct check *c, const void *given) {
    const struct shape *s = given;
    const double scale = 1024, weight = 1.0 / 64;
    const size_t bytes = sizeof(int32_t);
    struct tensor logits = make_logits(c, s, CHECK_WRITE);
    double *x = check_read(c, &logits);
    const int32_t *tokens;
    check_tokens(c, 2 * s->rows, (int32_t)s->vocabulary, &tokens);
    int32_t *places = (int32_t *)(void *)check_doubles(c, s->rows);
    for (int64_t r = 0; r < s->rows; r++)
        places[r] = r % 3 == 2 ? -1 : (int32_t)(2 * (s->rows - r) - 1);
    struct tensor losses =
        check_tensor(c, CHECK_WRITE, DTYPE_F32, 2 * s->rows, 0, check_doubles(c, 2 * s->rows));
    struct tensor loss_scale = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, &scale);
    const struct step_inputs *inputs = weighted(c, (float)weight);
    CHECK_OP(c, cross_entropy, .losses = losses.data, .logits = &logits,
             .targets = check_memory(c, CHECK_READ, tokens, 2 * (size_t)s->rows * bytes),
             .places = check_memory(c, CHECK_READ, places, (size_t)s->rows * bytes),
             .loss_scale = loss_scale.data, .inputs = inputs, .vocab_size = s->vocabulary,
             .softcap = (float)s->cap);
    if (!c->verify) return;
    double *got = check_read(c, &logits), *loss = check_read(c, &losses);
    for (int64_t r = 0; r < s->rows; r++) {
        struct shape one = {1, s->vocabulary, s->padded, s->dtype, s->spread, s->cap};
        struct tensor row = tensor_slice(&logits, r, 1);
        cr_assert_eq(loss[2 * r], 0, "no row has this place");
        for (int64_t v = 0; places[r] < 0 && v < s->padded; v++)
            cr_assert(got[r * s->padded + v] == 0, "row %d, column %d", (int)r, (int)v);
        if (places[r] < 0) continue;
        struct tensor row_loss = tensor_range(&losses, places[r], 1);
        verify_losses(c, &one, x + r * s->padded, tokens + places[r], &row_loss);
        verify_gradient(c, &one, x + r * s->padded, tokens + places[r], scale * weight, &row);
    }
}

Test(cross_entropy, rows_of_other_places) {
    for
        EACH_SHAPE(s) check_everywhere(placed, &shapes[s]);
}

/* Each row's gradient is multiplied by its weight, which is any number; its loss is not. */
static double weight_of(const struct shape *s, int64_t row) {
    static const double weights[] = {0, -1.5, 1, 300, 0.25};
    return weights[(row + s->vocabulary) % 5];
}

static void weighted_rows(struct check *c, const void *given) {
    const struct shape *s = given;
    const double scale = 1024, weight = (float)(1.0 / (double)(3 * s->rows));
    struct tensor logits = make_logits(c, s, CHECK_WRITE);
    double *x = check_read(c, &logits), *weights = check_doubles(c, s->rows);
    const int32_t *tokens;
    check_tokens(c, s->rows, (int32_t)s->vocabulary, &tokens);
    int32_t *targets = (int32_t *)(void *)check_doubles(c, s->rows);
    for (int64_t r = 0; r < s->rows; r++) {
        targets[r] = r % 7 == 4 ? -1 : tokens[r];
        weights[r] = weight_of(s, r);
    }
    const int32_t *place = check_memory(c, CHECK_READ, targets, (size_t)s->rows * sizeof *targets);
    struct tensor losses = check_output(c, DTYPE_F32, s->rows, 0);
    struct tensor loss_scale = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, &scale);
    struct tensor of_rows = check_tensor(c, CHECK_READ, DTYPE_F32, s->rows, 0, weights);
    const struct step_inputs *inputs = weighted(c, (float)weight);
    CHECK_OP(c, cross_entropy, .losses = losses.data, .logits = &logits, .targets = place,
             .loss_scale = loss_scale.data, .inputs = inputs, .weights = of_rows.data,
             .vocab_size = s->vocabulary, .softcap = (float)s->cap);
    if (!c->verify) return;
    double *got = check_read(c, &logits), *loss = check_read(c, &losses);
    for (int64_t r = 0; r < s->rows; r++) {
        const struct shape one = {1, s->vocabulary, s->padded, s->dtype, s->spread, s->cap};
        struct tensor row = tensor_slice(&logits, r, 1), row_loss = tensor_range(&losses, r, 1);
        if (targets[r] >= 0) {
            verify_losses(c, &one, x + r * s->padded, targets + r, &row_loss);
            verify_gradient(c, &one, x + r * s->padded, targets + r, scale * weight * weights[r],
                            &row);
            continue;
        }
        cr_assert(loss[r] == 0, "the loss of row %d", (int)r);
        for (int64_t v = 0; v < s->padded; v++)
            cr_assert(got[r * s->padded + v] == 0, "row %d, column %d", (int)r, (int)v);
    }
}

Test(cross_entropy, weighted_rows) {
    for
        EACH_SHAPE(s) check_everywhere(weighted_rows, &shapes[s]);
}

/* A row without a gradient keeps its logits; its loss is 0. */
static void ignored_forward(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensor logits = make_logits(c, s, CHECK_READ);
    int32_t *targets = (int32_t *)(void *)check_doubles(c, s->rows);
    for (int64_t r = 0; r < s->rows; r++) targets[r] = -1;
    const int32_t *place = check_memory(c, CHECK_READ, targets, (size_t)s->rows * sizeof *targets);
    struct tensor losses = check_output(c, DTYPE_F32, s->rows, 0);
    CHECK_OP(c, cross_entropy, .losses = losses.data, .logits = &logits, .targets = place,
             .vocab_size = s->vocabulary, .softcap = (float)s->cap);
    if (c->verify) check_equal(c, "ignored losses", &losses, check_doubles(c, s->rows));
}

Test(cross_entropy, ignored_targets_forward) {
    for
        EACH_SHAPE(s) check_everywhere(ignored_forward, &shapes[s]);
}

/* A logit of -inf is a probability of 0 in every column, and not a NaN. */
static void impossible(struct check *c, const void *given) {
    const enum dtype *dtype = given;
    enum { COUNT = 9000 };
    const double scale = 1024;
    double *values = check_doubles(c, COUNT);
    for (int i = 0; i < COUNT; i++) values[i] = i % 3000 == 2999 ? -2 : -INFINITY;
    struct tensor logits = check_tensor(c, CHECK_WRITE, *dtype, 1, COUNT, values);
    const int32_t target = 5999;
    const int32_t *targets = check_memory(c, CHECK_READ, &target, sizeof target);
    struct tensor losses = check_output(c, DTYPE_F32, 1, 0);
    struct tensor loss_scale = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, &scale);
    const struct step_inputs *inputs = weighted(c, 1);
    CHECK_OP(c, cross_entropy, .losses = losses.data, .logits = &logits, .targets = targets,
             .loss_scale = loss_scale.data, .inputs = inputs, .vocab_size = COUNT);
    if (!c->verify) return;
    double expected = log(3);
    check_close(c, "cross_entropy_loss", &losses, &expected, &(const double){5});
    for (int i = 0; i < COUNT; i++)
        values[i] = i % 3000 == 2999 ? scale * (1.0 / 3 - (i == target)) : 0;
    check_close(c, "cross_entropy_gradient", &logits, values, NULL);
}

Test(cross_entropy, impossible_tokens) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int i = 0; i < 3; i++) check_everywhere(impossible, &dtypes[i]);
}

/* Rows of an even length that start at an odd offset. */
static void odd_place(struct check *c, const void *given) {
    const struct shape s = {3, 61, 64, *(const enum dtype *)given, 3, 0};
    const double scale = 1024;
    struct tensor all = check_sum(c, s.dtype, 3 * 64 + 1, 0);
    struct tensor range = tensor_range(&all, 1, 3 * 64), logits = tensor_view(&range, 3, 64);
    double *x = check_read(c, &logits), before = check_read(c, &all)[0];
    const int32_t *targets, *place = check_tokens(c, s.rows, 61, &targets);
    struct tensor losses = check_output(c, DTYPE_F32, s.rows, 0);
    struct tensor loss_scale = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, &scale);
    const struct step_inputs *inputs = weighted(c, 1);
    CHECK_OP(c, cross_entropy, .losses = losses.data, .logits = &logits, .targets = place,
             .loss_scale = loss_scale.data, .inputs = inputs, .vocab_size = 61);
    if (!c->verify) return;
    verify_losses(c, &s, x, targets, &losses);
    verify_gradient(c, &s, x, targets, scale, &logits);
    cr_assert(check_read(c, &all)[0] == before, "wrote before the start");
}

Test(cross_entropy, odd_place) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int i = 0; i < 3; i++) check_everywhere(odd_place, &dtypes[i]);
}

/* A scale too large for fp16 must show as infinity, so that the step is skipped; fp32 and bf16
 * hold it. */
static void overflow(struct check *c, const void *given) {
    const enum dtype *dtype = given;
    const double zeros[64] = {0}, scale = 0x1p24;
    struct tensor logits = check_tensor(c, CHECK_WRITE, *dtype, 1, 64, zeros);
    const int32_t target = 5;
    const int32_t *targets = check_memory(c, CHECK_READ, &target, sizeof target);
    struct tensor losses = check_output(c, DTYPE_F32, 1, 0);
    struct tensor loss_scale = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, &scale);
    const struct step_inputs *inputs = weighted(c, 1);
    CHECK_OP(c, cross_entropy, .losses = losses.data, .logits = &logits, .targets = targets,
             .loss_scale = loss_scale.data, .inputs = inputs, .vocab_size = 64);
    double at_target = check_read(c, &logits)[5];
    cr_assert(*dtype == DTYPE_F16 ? isinf(at_target) : isfinite(at_target));
}

Test(cross_entropy, overflow_shows) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int i = 0; i < 3; i++) check_everywhere(overflow, &dtypes[i]);
}

struct problem {
    double logits[37], cap;
    int32_t target;
};

static double objective(const void *state) {
    struct problem p = *(const struct problem *)state;
    for (int i = 0; p.cap > 0 && i < 37; i++) p.logits[i] = p.cap * tanh(p.logits[i] / p.cap);
    return 1024.0 * (row_of(p.logits, 37).log_sum - p.logits[p.target]);
}

/* The gradient of the logits, or with a cap that of the logits before softcap. */
static void differences(struct check *c, const void *given) {
    const double scale = 1024, cap = *(const double *)given;
    struct tensor logits = check_sum(c, DTYPE_F32, 1, 37);
    struct problem p = {.target = 11, .cap = cap};
    double *before = check_read(c, &logits), expected[37];
    for (int i = 0; i < 37; i++) p.logits[i] = before[i];
    struct tensor losses = check_output(c, DTYPE_F32, 1, 0);
    struct tensor loss_scale = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, &scale);
    const int32_t *targets = check_memory(c, CHECK_READ, &p.target, sizeof p.target);
    const struct step_inputs *inputs = weighted(c, 1);
    if (cap > 0) CHECK_OP(c, softcap, .inout = &logits, .cap = (float)cap);
    CHECK_OP(c, cross_entropy, .losses = losses.data, .logits = &logits, .targets = targets,
             .loss_scale = loss_scale.data, .inputs = inputs, .vocab_size = 37,
             .softcap = (float)cap);
    if (!c->verify) return;
    for (int i = 0; i < 37; i++) expected[i] = check_derivative(objective, &p, &p.logits[i]);
    check_close(c, "differences", &logits, expected, NULL);
}

Test(cross_entropy, finite_differences) {
    check_everywhere(differences, &(const double){0});
    check_everywhere(differences, &(const double){1.5});
}

static void golden(struct check *c, const void *given) {
    (void)given;
    struct tensor logits = golden_tensor(c, CHECK_WRITE, "cross_entropy.logits");
    const int32_t *targets = golden_tokens(c, "cross_entropy.targets", NULL);
    int64_t rows = tensor_rows(&logits), columns = tensor_columns(&logits);
    struct tensor losses = check_output(c, DTYPE_F32, rows, 0);
    struct tensor loss_scale = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, &(const double){1024});
    const struct step_inputs *inputs = weighted(c, 1.0f / (float)rows);
    CHECK_OP(c, cross_entropy, .losses = losses.data, .logits = &logits, .targets = targets,
             .loss_scale = loss_scale.data, .inputs = inputs, .vocab_size = columns);
    if (!c->verify) return;
    golden_close(c, "golden_sum", &losses, "cross_entropy.losses", NULL);
    golden_close(c, "golden_sum", &logits, "cross_entropy.dlogits", NULL);
}

Test(cross_entropy, golden) {
    check_everywhere(golden, NULL);
}
