#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"
#include "kernels/softcap.h"

/* A row: its logits, its softmax at both temperatures, and its teacher. */
struct row {
    const struct tensor *logits;
    int64_t offset, count, padded; /* first element, V, V padded */
    int64_t target, top;           /* top: K */
    float inverse, inverse_cap;    /* 1 / T, and 1 / softcap or 0 */
    float max, sum, soft_sum;      /* sums of exp(x - max) and of exp((x - max) / T) */
    const int32_t *tokens;         /* [K] */
    float teacher[DISTILLATION_TOP_MAX], student[DISTILLATION_TOP_MAX]; /* [K] q, and logits */
};

/* Factors of the exponentials in the gradient, and of the target. */
struct factors {
    float soft, hard, teacher, target;
};

static float sum_exponentials(const struct row *row, float inverse) {
    float buffer[CPU_BLOCK], total = 0;
    for (int64_t v = 0; v < row->count; v += CPU_BLOCK) {
        int64_t n = block_length(v, row->count, CPU_BLOCK);
        const float *x =
            dtype_widen(buffer, row->logits->data, row->logits->dtype, row->offset + v, n);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) sum += exp_f32((x[i] - row->max) * inverse);
        total += sum;
    }
    return total;
}

static float logit_of(const struct row *row, int64_t token) {
    float value;
    return *dtype_widen(&value, row->logits->data, row->logits->dtype, row->offset + token, 1);
}

/* Fills in the teacher's probabilities and the student's logits, and returns the divergence. Both
 * logarithms are sums of terms of the same size, so their difference is taken term by term. */
static float divergence(struct row *row, const struct tensor *teacher_logits, int64_t first) {
    float *q = row->teacher, largest = -INFINITY, sum = 0, difference = 0;
    const float *t = dtype_widen(q, teacher_logits->data, teacher_logits->dtype, first, row->top);
    for (int64_t k = 0; k < row->top; k++) largest = t[k] > largest ? t[k] : largest;
    for (int64_t k = 0; k < row->top; k++) {
        const float distance = t[k] - largest;
        row->student[k] = logit_of(row, row->tokens[k]);
        q[k] = exp_f32(distance * row->inverse);
        sum += q[k];
        if (q[k] > 0) /* else 0 log 0, which is 0 */
            difference += q[k] * ((distance - (row->student[k] - row->max)) * row->inverse);
    }
    for (int64_t k = 0; k < row->top; k++) q[k] /= sum;
    return difference / sum + logf(row->soft_sum / sum);
}

/* Returns the gradient of a logit before the teacher's and the target's parts. */
static inline float softmax_part(float x, const struct row *row, const struct factors *f) {
    const float soft = exp_f32((x - row->max) * row->inverse) * f->soft;
    return row->inverse == 1 ? soft : soft + exp_f32(x - row->max) * f->hard;
}

static void row_gradient(const struct row *row, const struct factors *f) {
    const struct tensor *logits = row->logits;
    const size_t bytes = dtype_bytes(logits->dtype);
    float buffer[CPU_BLOCK], gradient[CPU_BLOCK];
    for (int64_t v = 0; v < row->count; v += CPU_BLOCK) {
        int64_t n = block_length(v, row->count, CPU_BLOCK);
        const float *x = dtype_widen(buffer, logits->data, logits->dtype, row->offset + v, n);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) gradient[i] = softmax_part(x[i], row, f);
        if (row->target >= v && row->target < v + n) gradient[row->target - v] -= f->target;
        if (row->inverse_cap > 0)
            for (int64_t i = 0; i < n; i++) gradient[i] *= softcap_slope(x[i], row->inverse_cap);
        dtype_store(logits->data, logits->dtype, row->offset + v, gradient, n);
    }
    /* The teacher's tokens again, from the logits as they were, so that each is rounded once. */
    for (int64_t k = 0; k < row->top; k++) {
        float value = softmax_part(row->student[k], row, f);
        if (row->tokens[k] == row->target) value -= f->target;
        value -= row->teacher[k] * f->teacher;
        if (row->inverse_cap > 0) value *= softcap_slope(row->student[k], row->inverse_cap);
        dtype_store(logits->data, logits->dtype, row->offset + row->tokens[k], &value, 1);
    }
    memset((char *)logits->data + (size_t)(row->offset + row->count) * bytes, 0,
           (size_t)(row->padded - row->count) * bytes);
}

static void compute_row(const struct distillation_args *args, int64_t i) {
    const int64_t padded = tensor_columns(args->logits), top = tensor_columns(args->teacher_logits);
    const int64_t place = args->places ? args->places[i] : i;
    struct row row = {.logits = args->logits, .offset = i * padded, .count = args->vocab_size};
    row.padded = padded, row.top = top, row.target = place < 0 ? -1 : args->targets[place];
    row.inverse = 1 / args->temperature;
    row.inverse_cap = args->softcap > 0 ? 1 / args->softcap : 0;
    if (row.target < 0) {
        const size_t bytes = (size_t)padded * dtype_bytes(args->logits->dtype);
        if (place >= 0) args->losses[place] = 0;
        if (args->loss_scale) memset((char *)args->logits->data + (size_t)i * bytes, 0, bytes);
        return;
    }
    row.tokens = args->teacher_tokens + place * top;
    const float alpha = args->alpha, temperature = args->temperature;
    row.max = cpu_row_max(row.logits, row.offset, row.count);
    row.soft_sum = sum_exponentials(&row, row.inverse);
    row.sum = row.inverse == 1 ? row.soft_sum : sum_exponentials(&row, 1);
    const float hard = logf(row.sum) + row.max - logit_of(&row, row.target);
    const float soft = divergence(&row, args->teacher_logits, place * top);
    args->losses[place] = alpha * temperature * temperature * soft + (1 - alpha) * hard;
    if (!args->loss_scale) return;
    const float scale = *args->loss_scale * args->inputs->loss_weight;
    struct factors f = {.teacher = scale * alpha * temperature, .target = scale * (1 - alpha)};
    f.soft = f.teacher / row.soft_sum, f.hard = f.target / row.sum;
    if (row.inverse == 1) f.soft += f.hard; /* one softmax */
    row_gradient(&row, &f);
}

void cpu_distillation(struct backend *be, const struct distillation_args *args) {
    (void)be;
    assert(args->vocab_size <= tensor_columns(args->logits));
    assert(tensor_columns(args->teacher_logits) <= DISTILLATION_TOP_MAX);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < tensor_rows(args->logits); i++) compute_row(args, i);
}
