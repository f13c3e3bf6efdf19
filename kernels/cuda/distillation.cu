/* Cross entropy and the divergence from a teacher, and their gradient: one block for each row.
 *
 * The teacher's tokens are processed last, from their logits as they were, so that each element of
 * the gradient is rounded once. A thread takes the same of them in each loop. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/storage.h"
#include "kernels/softcap.h"

#include <limits.h>

enum { THREADS = 512 };

/* Arguments that are the same for all rows. */
struct distillation {
    int columns, vocab_size, top;
    float alpha, temperature, inverse_cap; /* inverse_cap: 1 / softcap, or 0 */
};

/* The softmax of a row at both temperatures, and the factors of the gradient's parts. */
struct row {
    float max, inverse;
    float soft, hard, teacher, target;
};

/* The gradient of a logit before the teacher's and the target's parts. */
static __device__ __forceinline__ float softmax_part(float x, const struct row *row) {
    float soft = expf((x - row->max) * row->inverse) * row->soft;
    return row->inverse == 1 ? soft : soft + expf(x - row->max) * row->hard;
}

template <typename T>
static __device__ __forceinline__ void
gradient(T *logits, const struct distillation *d, const struct row *row, int target,
         const int32_t *tokens, const float *q, const float *student) {
    for (int v = (int)threadIdx.x; v < d->columns; v += THREADS) {
        float value = v < d->vocab_size ? softmax_part(widen(logits[v]), row) : 0;
        if (v == target) value -= row->target;
        if (d->inverse_cap > 0 && v < d->vocab_size)
            value *= softcap_slope(widen(logits[v]), d->inverse_cap);
        logits[v] = narrow<T>(value);
    }
    __syncthreads();
    for (int k = (int)threadIdx.x; k < d->top; k += THREADS) {
        float value = softmax_part(student[k], row);
        if (tokens[k] == target) value -= row->target;
        value -= q[k] * row->teacher;
        if (d->inverse_cap > 0) value *= softcap_slope(student[k], d->inverse_cap);
        logits[tokens[k]] = narrow<T>(value);
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    distillation_kernel(float *__restrict__ losses, T *all_logits,
                        const int32_t *__restrict__ targets, const int32_t *__restrict__ all_tokens,
                        const __half *__restrict__ teacher_logits,
                        const float *__restrict__ loss_scale,
                        const struct step_inputs *__restrict__ inputs,
                        const int32_t *__restrict__ places, struct distillation d) {
    DYNAMIC_SHARED(float, shared);
    float *q = shared, *student = shared + d.top; /* [K] probabilities, and logits */
    T *logits = all_logits + (int64_t)blockIdx.x * d.columns;
    const int place = places ? places[blockIdx.x] : (int)blockIdx.x;
    const int32_t *tokens = all_tokens + (int64_t)place * d.top;
    const __half *teacher = teacher_logits + (int64_t)place * d.top;
    const int target = place < 0 ? -1 : targets[place], first = (int)threadIdx.x;
    if (target < 0) { /* the same for the whole block */
        if (first == 0 && place >= 0) losses[place] = 0;
        for (int v = first; loss_scale && v < d.columns; v += THREADS) logits[v] = narrow<T>(0);
        return;
    }
    struct row row = {-INFINITY, 1 / d.temperature, 0, 0, 0, 0};
    for (int v = first; v < d.vocab_size; v += THREADS) row.max = fmaxf(row.max, widen(logits[v]));
    row.max = block_max<THREADS>(row.max);
    float soft_sum = 0, sum = 0, largest = -INFINITY, teacher_sum = 0, difference = 0;
    for (int v = first; v < d.vocab_size; v += THREADS) {
        float distance = widen(logits[v]) - row.max;
        soft_sum += expf(distance * row.inverse);
        sum += expf(distance);
    }
    soft_sum = block_sum<THREADS>(soft_sum);
    sum = block_sum<THREADS>(sum);
    for (int k = first; k < d.top; k += THREADS) largest = fmaxf(largest, widen(teacher[k]));
    largest = block_max<THREADS>(largest);
    for (int k = first; k < d.top; k += THREADS) {
        float distance = widen(teacher[k]) - largest;
        student[k] = widen(logits[tokens[k]]);
        q[k] = expf(distance * row.inverse);
        teacher_sum += q[k];
        if (q[k] > 0) /* else 0 log 0, which is 0 */
            difference += q[k] * ((distance - (student[k] - row.max)) * row.inverse);
    }
    teacher_sum = block_sum<THREADS>(teacher_sum);
    difference = block_sum<THREADS>(difference); /* all logits that are read below are read */
    for (int k = first; k < d.top; k += THREADS) q[k] /= teacher_sum;
    if (first == 0) {
        float soft = difference / teacher_sum + logf(soft_sum / teacher_sum);
        float hard = logf(sum) + row.max - widen(logits[target]);
        losses[place] = d.alpha * d.temperature * d.temperature * soft + (1 - d.alpha) * hard;
    }
    if (!loss_scale) return;
    __syncthreads(); /* the target's logit is read before any thread writes its gradient */
    float scale = *loss_scale * inputs->loss_weight;
    row.teacher = scale * d.alpha * d.temperature;
    row.target = scale * (1 - d.alpha);
    row.soft = row.teacher / soft_sum;
    row.hard = row.target / sum;
    if (row.inverse == 1) row.soft += row.hard; /* one softmax */
    gradient(logits, &d, &row, target, tokens, q, student);
}

void cuda_distillation(struct backend *be, const struct distillation_args *args) {
    const struct tensor *logits = args->logits, *teacher = args->teacher_logits;
    int64_t rows = tensor_rows(logits), columns = tensor_columns(logits);
    assert(args->vocab_size <= columns && columns <= INT_MAX / 2);
    assert(tensor_columns(teacher) <= DISTILLATION_TOP_MAX && teacher->dtype == DTYPE_F16);
    if (rows == 0) return;
    struct distillation d = {
        (int)columns, (int)args->vocab_size, (int)tensor_columns(teacher),
        args->alpha,  args->temperature,     args->softcap > 0 ? 1 / args->softcap : 0};
    STORAGE_SWITCH(logits->dtype, T, {
        LAUNCH(distillation_kernel<T>, (unsigned)rows, THREADS, 2 * (size_t)d.top * sizeof(float),
               cuda_state(be)->compute, args->losses, (T *)logits->data, args->targets,
               args->teacher_tokens, (const __half *)teacher->data, args->loss_scale, args->inputs,
               args->places, d);
    });
    cuda_launched(be, "distillation");
}
