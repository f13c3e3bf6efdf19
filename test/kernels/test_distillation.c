/* Cross entropy and the divergence from a teacher, against the definition in fp64. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

#include "test/kernels/golden.h"

struct shape {
    int64_t rows, vocabulary, padded, top;
    enum dtype dtype;
    double spread; /* standard deviation of the logits */
    double alpha, temperature;
    double cap; /* of softcap; 0: none */
};

static const struct shape shapes[] = {
    {26, 37, 64, 5, DTYPE_F32, 3, 0.5, 1, 0},
    {26, 37, 64, 37, DTYPE_F32, 3, 0.7, 2, 0}, /* the teacher's whole vocabulary */
    {1, 1, 1, 1, DTYPE_F32, 1, 0.5, 1, 0},
    {77, 61, 64, 8, DTYPE_BF16, 3, 0.3, 4, 0},
    {33, 61, 128, 1, DTYPE_F16, 3, 0.5, 0.5, 0},
    {9, 513, 513, 300, DTYPE_F32, 100, 0.5, 3, 0},
    {3, 2049, 2049, 1024, DTYPE_BF16, 3, 0.5, 1.5, 0}, /* the most tokens of a teacher */
    {2, 50257, 50304, 64, DTYPE_BF16, 4, 0.5, 1, 0},
    {2, 50257, 50304, 64, DTYPE_F16, 4, 0.5, 2, 0},
    {5, 600, 640, 64, DTYPE_F32, 3, 1, 2, 0}, /* the teacher alone */
    {5, 600, 640, 64, DTYPE_F32, 3, 0, 2, 0}, /* the data alone */
    {26, 37, 64, 5, DTYPE_F32, 40, 0.5, 1, 30},
    {9, 513, 520, 64, DTYPE_BF16, 20, 0.7, 2, 30},
    {33, 61, 128, 8, DTYPE_F16, 5, 0.5, 2, 7.25},
};
#define EACH_SHAPE(s) (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)

struct arguments {
    struct tensor logits, losses, teacher, scale;
    double *x, *t; /* logits and teacher_logits on the host */
    int32_t *targets, *tokens;
    const int32_t *targets_given, *tokens_given;
    const struct step_inputs *inputs;
};

static const double SCALE = 1024;

static float weight_of(const struct shape *s) {
    return (float)(1.0 / (double)(3 * s->rows));
}

/* Every third row is ignored if `ignores`, and holds NaN and infinities. The target of a row with
 * an even number is one of the teacher's tokens. The teacher's lowest logit is -inf in some rows.
 */
static struct arguments make(struct check *c, const struct shape *s, bool ignores,
                             enum check_use use) {
    struct arguments a;
    const int64_t teachers = s->rows * s->top;
    struct tensor random = check_normal(c, DTYPE_F32, s->rows, s->padded, s->spread);
    double *values = check_read(c, &random);
    random = check_normal(c, DTYPE_F16, s->rows, s->top, s->spread);
    a.t = check_read(c, &random);
    a.targets = (int32_t *)(void *)check_doubles(c, s->rows);
    a.tokens = (int32_t *)(void *)check_doubles(c, teachers);
    const int32_t *drawn, *starts;
    check_tokens(c, s->rows, (int32_t)s->vocabulary, &drawn);
    check_tokens(c, s->rows, (int32_t)(s->vocabulary / s->top), &starts);
    for (int64_t r = 0; r < s->rows; r++) {
        const int64_t stride = s->vocabulary / s->top;
        for (int64_t k = 0; k < s->top; k++)
            a.tokens[r * s->top + k] = (int32_t)(k * stride) + starts[r];
        if (s->top > 2 && r % 4 == 1) a.t[r * s->top + 1] = -INFINITY;
        a.targets[r] = r % 2 == 0 ? a.tokens[r * s->top + s->top / 2] : drawn[r];
        if (ignores && r % 3 == 0) a.targets[r] = -1 - (int32_t)r;
        for (int64_t v = 0; v < s->padded; v++) {
            double *x = values + r * s->padded + v;
            if (s->cap > 0) *x = s->cap * tanh(*x / s->cap);
            if (v >= s->vocabulary || a.targets[r] < 0) *x = v % 2 ? NAN : 60000;
        }
    }
    a.logits = check_tensor(c, use, s->dtype, s->rows, s->padded, values);
    a.x = check_read(c, &a.logits);
    a.teacher = check_tensor(c, CHECK_READ, DTYPE_F16, s->rows, s->top, a.t);
    a.losses = check_output(c, DTYPE_F32, s->rows, 0);
    a.scale = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, &SCALE);
    a.targets_given = check_memory(c, CHECK_READ, a.targets, (size_t)s->rows * sizeof *a.targets);
    a.tokens_given = check_memory(c, CHECK_READ, a.tokens, (size_t)teachers * sizeof *a.tokens);
    const struct step_inputs inputs = {.loss_weight = weight_of(s)};
    a.inputs = check_memory(c, CHECK_READ, &inputs, sizeof inputs);
    return a;
}

/* Log of the sum of exp(x / temperature). */
static double log_sum(const double *x, int64_t count, double temperature) {
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++) max = fmax(max, x[i]);
    for (int64_t i = 0; i < count; i++) sum += exp((x[i] - max) / temperature);
    return max / temperature + log(sum);
}

/* A row by its definition: the loss, the size of its terms, and if g is given its gradient, times
 * scale, with the size of its terms. */
static double define(const struct shape *s, const double *x, const double *t, const int32_t *tokens,
                     int32_t target, double *size, double scale, double *g, double *g_size) {
    const double T = s->temperature, alpha = s->alpha;
    const double soft = log_sum(x, s->vocabulary, T), hard = log_sum(x, s->vocabulary, 1);
    const double teacher = log_sum(t, s->top, T);
    double divergence = 0, terms = fabs(soft) + fabs(teacher) + 1;
    for (int64_t v = 0; g && v < s->vocabulary; v++) {
        const double p = exp(x[v] / T - soft), q = exp(x[v] - hard);
        g[v] = scale * (alpha * T * p + (1 - alpha) * (q - (v == target)));
        g_size[v] = scale * (alpha * T * p * (1 + fabs(x[v] / T) + fabs(soft)) +
                             (1 - alpha) * (q * (1 + fabs(x[v]) + fabs(hard)) + (v == target)));
    }
    for (int64_t k = 0; k < s->top; k++) {
        const double log_q = t[k] / T - teacher, q = exp(log_q);
        if (q == 0) continue;
        divergence += q * (log_q - (x[tokens[k]] / T - soft));
        terms += q * (fabs(t[k] / T) + fabs(x[tokens[k]] / T)) * 2;
        if (g) g[tokens[k]] -= scale * alpha * T * q;
        if (g) g_size[tokens[k]] += scale * alpha * T * q * (1 + fabs(t[k] / T) + fabs(teacher));
    }
    for (int64_t v = 0; g && s->cap > 0 && v < s->vocabulary; v++) {
        g[v] *= 1 - x[v] / s->cap * (x[v] / s->cap);
        g_size[v] *= 1 + x[v] / s->cap * (x[v] / s->cap);
    }
    *size = alpha * T * T * terms + (1 - alpha) * (fabs(hard) + fabs(x[target]) + 1);
    return alpha * T * T * divergence + (1 - alpha) * (hard - x[target]);
}

static void verify(struct check *c, const struct shape *s, const struct arguments *a,
                   bool gradient) {
    const int64_t count = s->rows * s->padded;
    double *losses = check_doubles(c, s->rows), *sizes = check_doubles(c, s->rows);
    double *g = check_doubles(c, count), *g_size = check_doubles(c, count);
    for (int64_t r = 0; r < s->rows; r++)
        if (a->targets[r] >= 0)
            losses[r] = define(s, a->x + r * s->padded, a->t + r * s->top, a->tokens + r * s->top,
                               a->targets[r], sizes + r, SCALE * (double)weight_of(s),
                               g + r * s->padded, g_size + r * s->padded);
    check_close(c, "distillation_loss", &a->losses, losses, sizes);
    if (!gradient) return;
    check_close(c, "distillation_gradient", &a->logits, g, g_size);
    double *got = check_read(c, &a->logits), *loss = check_read(c, &a->losses);
    for (int64_t i = 0; i < count; i++)
        if (i % s->padded >= s->vocabulary || a->targets[i / s->padded] < 0)
            cr_assert(got[i] == 0, "row %d, column %d is not 0", (int)(i / s->padded),
                      (int)(i % s->padded));
    for (int64_t r = 0; r < s->rows; r++)
        cr_assert(a->targets[r] >= 0 || loss[r] == 0, "the loss of ignored row %d", (int)r);
}

static void run(struct check *c, const struct shape *s, bool ignores, bool gradient) {
    struct arguments a = make(c, s, ignores, gradient ? CHECK_WRITE : CHECK_READ);
    CHECK_OP(c, distillation, .losses = a.losses.data, .logits = &a.logits,
             .targets = a.targets_given, .teacher_tokens = a.tokens_given,
             .teacher_logits = &a.teacher, .alpha = (float)s->alpha,
             .temperature = (float)s->temperature, .loss_scale = gradient ? a.scale.data : NULL,
             .inputs = gradient ? a.inputs : NULL, .vocab_size = s->vocabulary,
             .softcap = (float)s->cap);
    if (c->verify) verify(c, s, &a, gradient);
}

static void forward_only(struct check *c, const void *given) {
    run(c, given, false, false); /* and the logits must not change */
}

Test(distillation, forward_only) {
    for
        EACH_SHAPE(s) check_everywhere(forward_only, &shapes[s]);
}

static void backward(struct check *c, const void *given) {
    run(c, given, false, true);
}

Test(distillation, backward) {
    for
        EACH_SHAPE(s) check_everywhere(backward, &shapes[s]);
}

static void ignored(struct check *c, const void *given) {
    run(c, given, true, true);
}

Test(distillation, ignored_targets) {
    for
        EACH_SHAPE(s) check_everywhere(ignored, &shapes[s]);
}

/* A scale too large for fp16 shows as infinity, so that the step is skipped. */
static void overflow(struct check *c, const void *given) {
    const enum dtype *dtype = given;
    const double zeros[64] = {0}, scale = 0x1p24, teacher_logit = 0;
    const int32_t target = 5, token = 7;
    struct tensor logits = check_tensor(c, CHECK_WRITE, *dtype, 1, 64, zeros);
    struct tensor teacher = check_tensor(c, CHECK_READ, DTYPE_F16, 1, 1, &teacher_logit);
    struct tensor losses = check_output(c, DTYPE_F32, 1, 0);
    struct tensor loss_scale = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, &scale);
    const struct step_inputs inputs = {.loss_weight = 1};
    CHECK_OP(c, distillation, .losses = losses.data, .logits = &logits,
             .targets = check_memory(c, CHECK_READ, &target, sizeof target),
             .teacher_tokens = check_memory(c, CHECK_READ, &token, sizeof token),
             .teacher_logits = &teacher, .alpha = 0.5f, .temperature = 1,
             .loss_scale = loss_scale.data,
             .inputs = check_memory(c, CHECK_READ, &inputs, sizeof inputs), .vocab_size = 64);
    const double *got = check_read(c, &logits);
    cr_assert(*dtype == DTYPE_F16 ? isinf(got[5]) && isinf(got[7]) : isfinite(got[5] + got[7]));
}

Test(distillation, overflow_shows) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int i = 0; i < 3; i++) check_everywhere(overflow, &dtypes[i]);
}

/* A logit of -inf is a probability of 0; the loss is infinite if the teacher expects that token,
 * and the gradient is finite. A NaN shows in the loss and in each gradient of its row. */
static void not_finite(struct check *c, const void *given) {
    enum { COUNT = 64, TOKEN = 7, OTHER = 9, TARGET = 5 };
    const enum dtype *dtype = given;
    const int32_t targets[] = {TARGET, TARGET, TARGET}, tokens[] = {TOKEN, TOKEN, TOKEN};
    const double teacher_logits[3] = {0}, scale = 64;
    double values[3 * COUNT] = {0};
    values[OTHER] = values[COUNT + TOKEN] = -INFINITY;
    values[2 * COUNT + OTHER] = NAN;
    struct tensor logits = check_tensor(c, CHECK_WRITE, *dtype, 3, COUNT, values);
    struct tensor teacher = check_tensor(c, CHECK_READ, DTYPE_F16, 3, 1, teacher_logits);
    struct tensor losses = check_output(c, DTYPE_F32, 3, 0);
    struct tensor loss_scale = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, &scale);
    const struct step_inputs inputs = {.loss_weight = 1};
    CHECK_OP(c, distillation, .losses = losses.data, .logits = &logits,
             .targets = check_memory(c, CHECK_READ, targets, sizeof targets),
             .teacher_tokens = check_memory(c, CHECK_READ, tokens, sizeof tokens),
             .teacher_logits = &teacher, .alpha = 0.5f, .temperature = 2,
             .loss_scale = loss_scale.data,
             .inputs = check_memory(c, CHECK_READ, &inputs, sizeof inputs), .vocab_size = COUNT);
    if (!c->verify) return;
    const double *got = check_read(c, &logits), *loss = check_read(c, &losses);
    /* 63 tokens of the same probability: 0.5 T^2 log 63 + 0.5 log 63. */
    cr_assert_leq(fabs(loss[0] / (2.5 * log(63)) - 1), 8 * 0x1p-24);
    cr_assert_eq(got[OTHER], 0);
    cr_assert_eq(loss[1], INFINITY);
    cr_assert_eq(got[COUNT + TOKEN], -scale * 0.5 * 2);
    cr_assert(isnan(loss[2]));
    for (int v = 0; v < COUNT; v++) {
        cr_assert(isfinite(got[v]) && isfinite(got[COUNT + v]), "column %d", v);
        cr_assert(isnan(got[2 * COUNT + v]), "column %d", v);
    }
}

Test(distillation, not_finite) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int i = 0; i < 3; i++) check_everywhere(not_finite, &dtypes[i]);
}

struct problem {
    struct shape shape;
    double x[37], t[5];
    int32_t tokens[5], target;
};

static double objective(const void *state) {
    const struct problem *p = state;
    double size;
    return SCALE * (double)weight_of(&p->shape) *
           define(&p->shape, p->x, p->t, p->tokens, p->target, &size, 0, NULL, NULL);
}

/* The gradient is the derivative of the loss, by differences of its definition. */
static void differences(struct check *c, const void *given) {
    struct problem p = {.shape = *(const struct shape *)given};
    const struct shape *s = &p.shape;
    struct arguments a = make(c, s, false, CHECK_WRITE);
    double expected[37];
    for (int i = 0; i < 37; i++) p.x[i] = a.x[i];
    for (int k = 0; k < 5; k++) p.t[k] = a.t[k], p.tokens[k] = a.tokens[k];
    p.target = a.targets[0];
    CHECK_OP(c, distillation, .losses = a.losses.data, .logits = &a.logits,
             .targets = a.targets_given, .teacher_tokens = a.tokens_given,
             .teacher_logits = &a.teacher, .alpha = (float)s->alpha,
             .temperature = (float)s->temperature, .loss_scale = a.scale.data, .inputs = a.inputs,
             .vocab_size = 37);
    if (!c->verify) return;
    for (int i = 0; i < 37; i++) expected[i] = check_derivative(objective, &p, &p.x[i]);
    check_close(c, "differences", &a.logits, expected, NULL);
}

Test(distillation, finite_differences) {
    static const struct shape cases[] = {{1, 37, 37, 5, DTYPE_F32, 3, 0.5, 1, 0},
                                         {1, 37, 37, 5, DTYPE_F32, 3, 0.75, 2, 0}};
    for (int i = 0; i < 2; i++) check_everywhere(differences, &cases[i]);
}

/* PyTorch's loss and gradient. */
static void golden(struct check *c, const void *given) {
    const bool soft = given != NULL;
    char names[6][64];
    static const char *const parts[] = {"logits",         "targets", "teacher_tokens",
                                        "teacher_logits", "losses",  "dlogits"};
    for (int i = 0; i < 6; i++)
        snprintf(names[i], sizeof *names, "distillation%s.%s", soft ? "_soft" : "", parts[i]);
    struct tensor logits = golden_tensor(c, CHECK_WRITE, names[0]);
    const int32_t *targets = golden_tokens(c, names[1], NULL);
    const int32_t *tokens = golden_tokens(c, names[2], NULL);
    const int64_t rows = tensor_rows(&logits), columns = tensor_columns(&logits), top = 7;
    struct tensor teacher =
        check_tensor(c, CHECK_READ, DTYPE_F16, rows, top, golden_values(c, names[3]));
    struct tensor losses = check_output(c, DTYPE_F32, rows, 0);
    struct tensor loss_scale = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, &SCALE);
    const struct step_inputs inputs = {.loss_weight = 1.0f / (float)rows};
    CHECK_OP(c, distillation, .losses = losses.data, .logits = &logits, .targets = targets,
             .teacher_tokens = tokens, .teacher_logits = &teacher, .alpha = soft ? 0.7f : 0.5f,
             .temperature = soft ? 2 : 1, .loss_scale = loss_scale.data,
             .inputs = check_memory(c, CHECK_READ, &inputs, sizeof inputs), .vocab_size = columns);
    if (!c->verify) return;
    golden_close(c, "golden_sum", &losses, names[4], NULL);
    golden_close(c, "golden_sum", &logits, names[5], NULL);
}

Test(distillation, golden) {
    check_everywhere(golden, NULL);
    check_everywhere(golden, "soft");
}
