#include <criterion/criterion.h>
#include <math.h>

#include "test/kernels/golden.h"

struct shape {
    int64_t rows, vocabulary, padded;
    enum dtype dtype;
    double spread; /* of the logits */
};

static const struct shape shapes[] = {
    {26, 37, 64, DTYPE_F32, 3},       {1, 1, 1, DTYPE_F32, 1},
    {77, 61, 64, DTYPE_BF16, 3},      {33, 61, 128, DTYPE_F16, 3},
    {5, 50257, 50304, DTYPE_F32, 4},  {3, 50257, 50304, DTYPE_BF16, 4},
    {3, 50257, 50304, DTYPE_F16, 4},  {9, 513, 513, DTYPE_F32, 100},
    {9, 512, 1024, DTYPE_BF16, 100},
};
#define EACH_SHAPE(s) (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)

/* The padding holds NaN: it may not be looked at. */
static struct tensor make_logits(struct check *c, const struct shape *s, enum check_use use) {
    struct tensor random = check_normal(c, DTYPE_F32, s->rows, s->padded, s->spread);
    double *values = check_read(c, &random);
    for (int64_t i = 0; i < s->rows * s->padded; i++)
        if (i % s->padded >= s->vocabulary) values[i] = NAN;
    return check_tensor(c, use, s->dtype, s->rows, s->padded, values);
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

static void forward_only(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensor logits = make_logits(c, s, CHECK_READ); /* so they may not change */
    const int32_t *targets;
    const int32_t *place = check_tokens(c, s->rows, (int32_t)s->vocabulary, &targets);
    struct tensor losses = check_output(c, DTYPE_F32, s->rows, 0);
    CHECK_OP(c, cross_entropy, .losses = losses.data, .logits = &logits, .targets = place,
             .weight = 1, .vocab_size = s->vocabulary);
    if (c->verify) verify_losses(c, s, check_read(c, &logits), targets, &losses);
}

Test(cross_entropy, forward_only) {
    for EACH_SHAPE (s) check_everywhere(forward_only, &shapes[s]);
}

static void backward(struct check *c, const void *given) {
    const struct shape *s = given;
    const double scale = 1024, weight = (float)(1.0 / (double)(3 * s->rows));
    struct tensor logits = make_logits(c, s, CHECK_WRITE);
    double *x = check_read(c, &logits), *size = check_doubles(c, s->rows * s->padded);
    const int32_t *targets;
    const int32_t *place = check_tokens(c, s->rows, (int32_t)s->vocabulary, &targets);
    struct tensor losses = check_output(c, DTYPE_F32, s->rows, 0);
    struct tensor loss_scale = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, &scale);
    CHECK_OP(c, cross_entropy, .losses = losses.data, .logits = &logits, .targets = place,
             .loss_scale = loss_scale.data, .weight = (float)weight, .vocab_size = s->vocabulary);
    if (!c->verify) return;
    verify_losses(c, s, x, targets, &losses);
    for (int64_t i = 0; i < s->rows * s->padded; i++) {
        int64_t r = i / s->padded, v = i % s->padded;
        if (v == 0) size[i] = row_of(x + i, s->vocabulary).log_sum; /* kept there for the row */
        double log_sum = size[r * s->padded];
        double p = v < s->vocabulary ? exp(x[i] - log_sum) : 0;
        bool hit = v == targets[r];
        if (v > 0) size[i] = scale * weight * (p * (2 + fabs(x[i] - log_sum)) + hit);
        if (v > 0) x[i] = scale * weight * (p - hit);
    }
    for (int64_t r = 0; r < s->rows; r++) { /* column 0, whose place was borrowed */
        int64_t i = r * s->padded;
        double p = exp(x[i] - size[i]), distance = fabs(x[i] - size[i]);
        bool hit = targets[r] == 0;
        size[i] = scale * weight * (p * (2 + distance) + hit);
        x[i] = scale * weight * (p - hit);
    }
    check_close(c, "cross_entropy_gradient", &logits, x, size);
}

Test(cross_entropy, backward) {
    for EACH_SHAPE (s) check_everywhere(backward, &shapes[s]);
}
