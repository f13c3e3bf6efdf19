#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"
#include "kernels/softcap.h"

/* Computes maxima over every 16th element first: compilers that preserve NaN vectorize no other
 * form. */
float cpu_row_max(const struct tensor *logits, int64_t offset, int64_t count) {
    enum { LANES = 16 };
    float buffer[CPU_BLOCK], maxima[LANES];
    for (int lane = 0; lane < LANES; lane++) maxima[lane] = -INFINITY;
    for (int64_t v = 0; v < count; v += CPU_BLOCK) {
        int64_t n = block_length(v, count, CPU_BLOCK), i = 0;
        const float *x = dtype_widen(buffer, logits->data, logits->dtype, offset + v, n);
        for (; i + LANES <= n; i += LANES)
#pragma omp simd
            for (int lane = 0; lane < LANES; lane++)
                maxima[lane] = x[i + lane] > maxima[lane] ? x[i + lane] : maxima[lane];
        for (; i < n; i++) maxima[0] = x[i] > maxima[0] ? x[i] : maxima[0];
    }
    float max = maxima[0];
    for (int lane = 1; lane < LANES; lane++) max = maxima[lane] > max ? maxima[lane] : max;
    return max;
}

static float row_exponentials(const struct tensor *logits, int64_t offset, int64_t count,
                              float max) {
    float buffer[CPU_BLOCK], total = 0;
    for (int64_t v = 0; v < count; v += CPU_BLOCK) {
        int64_t n = block_length(v, count, CPU_BLOCK);
        const float *x = dtype_widen(buffer, logits->data, logits->dtype, offset + v, n);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) sum += exp_f32(x[i] - max);
        total += sum;
    }
    return total;
}

/* logits = (softmax - one_hot(target)) * scale, in place, and 0 in the padding; times the slope of
 * softcap, if there is one. */
static void row_gradient(const struct cross_entropy_args *args, int64_t row, int64_t target,
                         float max, float sum, float scale) {
    const struct tensor *logits = args->logits;
    int64_t padded = tensor_columns(logits), count = args->vocab_size, offset = row * padded;
    float buffer[CPU_BLOCK], gradient[CPU_BLOCK];
    float factor = scale / sum, inverse_cap = args->softcap > 0 ? 1 / args->softcap : 0;
    for (int64_t v = 0; v < count; v += CPU_BLOCK) {
        int64_t n = block_length(v, count, CPU_BLOCK);
        const float *x = dtype_widen(buffer, logits->data, logits->dtype, offset + v, n);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) gradient[i] = exp_f32(x[i] - max) * factor;
        if (target >= v && target < v + n) gradient[target - v] -= scale;
        if (inverse_cap > 0)
            for (int64_t i = 0; i < n; i++) gradient[i] *= softcap_slope(x[i], inverse_cap);
        dtype_store(logits->data, logits->dtype, offset + v, gradient, n);
    }
    size_t bytes = dtype_bytes(logits->dtype);
    memset((char *)logits->data + (size_t)(offset + count) * bytes, 0,
           (size_t)(padded - count) * bytes);
}

/* Row whose target is ignored: gradient 0. */
static void ignore_row(const struct cross_entropy_args *args, int64_t row) {
    const struct tensor *logits = args->logits;
    size_t bytes = (size_t)tensor_columns(logits) * dtype_bytes(logits->dtype);
    if (args->loss_scale) memset((char *)logits->data + (size_t)row * bytes, 0, bytes);
}

void cpu_cross_entropy(struct backend *be, const struct cross_entropy_args *args) {
    (void)be;
    const struct tensor *logits = args->logits;
    int64_t rows = tensor_rows(logits), padded = tensor_columns(logits), count = args->vocab_size;
    assert(count <= padded);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        int64_t place = args->places ? args->places[row] : row, offset = row * padded;
        int64_t target = place < 0 ? -1 : args->targets[place];
        if (target < 0) {
            if (place >= 0) args->losses[place] = 0;
            ignore_row(args, row);
            continue;
        }
        float max = cpu_row_max(logits, offset, count);
        float sum = row_exponentials(logits, offset, count, max), target_logit;
        target_logit = *dtype_widen(&target_logit, logits->data, logits->dtype, offset + target, 1);
        args->losses[place] = logf(sum) + max - target_logit;
        if (args->loss_scale)
            row_gradient(args, row, target, max, sum,
                         *args->loss_scale * args->inputs->loss_weight *
                             (args->weights ? args->weights[place] : 1));
    }
}
