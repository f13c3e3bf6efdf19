#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

/* 1 / sqrt(mean square + epsilon) of a head. */
static float head_rstd(const float *x, int64_t size, float epsilon) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; i++) squares += x[i] * x[i];
    return 1.0f / sqrtf(squares / (float)size + epsilon);
}

/* Turns pairs of columns of a head at position row % length, by the opposite angles if sign is -1;
 * see rope. */
static void rotate(float *x, const struct tensor *angles, int64_t row, int64_t length, float sign) {
    int64_t size = tensor_columns(angles), half = size / 2;
    const float *cosines = (const float *)angles->data + row % length * size;
    const float *sines = cosines + half;
#pragma omp simd
    for (int64_t j = 0; j < half; j++) {
        float low = x[j], high = x[j + half], sine = sign * sines[j];
        x[j] = low * cosines[j] - high * sine;
        x[j + half] = high * cosines[j] + low * sine;
    }
}

void cpu_qk_norm_forward(struct backend *be, const struct qk_norm_forward_args *args) {
    (void)be;
    const struct tensor *x = args->inout, *raw = args->raw;
    int64_t rows = tensor_rows(x), columns = tensor_columns(x),
            size = tensor_columns(args->q_weight);
    int64_t heads = args->heads + args->kv_heads;
    assert(size <= CPU_BLOCK && heads * size <= columns && tensor_columns(raw) == heads * size);
    assert(raw->dtype == x->dtype);
    assert(args->q_weight->dtype == DTYPE_F32 && args->k_weight->dtype == DTYPE_F32);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t head = 0; head < heads; head++) {
            const struct tensor *w = head < args->heads ? args->q_weight : args->k_weight;
            const float *weight = w->data;
            float in_buffer[CPU_BLOCK], out[CPU_BLOCK];
            int64_t at = row * columns + head * size;
            const float *in = dtype_widen(in_buffer, x->data, x->dtype, at, size);
            float rstd = head_rstd(in, size, args->epsilon);
            dtype_store(raw->data, raw->dtype, (row * heads + head) * size, in, size);
            for (int64_t i = 0; i < size; i++) out[i] = in[i] * rstd * weight[i];
            if (args->angles) rotate(out, args->angles, row, args->sequence_length, 1);
            dtype_store(x->data, x->dtype, at, out, size);
        }
    }
}

/* With d = dout * weight and h = in * rstd, the gradient is rstd * (d - h * mean(d * h)); the
 * weight's, of one head, is added to dweight [D]. */
static void head_backward(const struct qk_norm_backward_args *a, float *dweight, int64_t row,
                          int64_t head, int64_t size) {
    const struct tensor *d = a->dinout, *raw = a->raw;
    const float *weight = (head < a->heads ? a->q_weight : a->k_weight)->data;
    float dout[CPU_BLOCK], in_buffer[CPU_BLOCK], din[CPU_BLOCK], sum = 0;
    int64_t at = row * tensor_columns(d) + head * size;
    const float *stored = dtype_widen(dout, d->data, d->dtype, at, size);
    if (stored != dout) memcpy(dout, stored, (size_t)size * sizeof *dout);
    if (a->angles) rotate(dout, a->angles, row, a->sequence_length, -1);
    const float *in = dtype_widen(in_buffer, raw->data, raw->dtype,
                                  row * tensor_columns(raw) + head * size, size);
    float rstd = head_rstd(in, size, a->epsilon);
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) {
        dweight[i] += dout[i] * in[i] * rstd;
        sum += dout[i] * weight[i] * in[i] * rstd;
    }
    float mean = sum / (float)size;
    for (int64_t i = 0; i < size; i++) din[i] = rstd * (dout[i] * weight[i] - in[i] * rstd * mean);
    dtype_store(d->data, d->dtype, at, din, size);
}

size_t cpu_qk_norm_backward_scratch(struct backend *be, const struct qk_norm_backward_args *args) {
    (void)be;
    int64_t blocks = blocks_of(tensor_rows(args->dinout), CPU_ROW_BLOCK);
    return (size_t)(blocks * 2 * tensor_columns(args->q_weight)) * sizeof(float);
}

void cpu_qk_norm_backward(struct backend *be, const struct qk_norm_backward_args *args) {
    int64_t rows = tensor_rows(args->dinout), size = tensor_columns(args->q_weight);
    int64_t blocks = blocks_of(rows, CPU_ROW_BLOCK), heads = args->heads + args->kv_heads;
    /* [blocks, 2, D]: dq_weight, dk_weight of each row block */
    float *partials = backend_workspace(be, cpu_qk_norm_backward_scratch(be, args));
    assert(size <= CPU_BLOCK && tensor_columns(args->raw) == heads * size);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        float *partial = partials + block * 2 * size;
        memset(partial, 0, (size_t)(2 * size) * sizeof *partial);
        int64_t first = block * CPU_ROW_BLOCK;
        for (int64_t row = first; row < first + block_length(first, rows, CPU_ROW_BLOCK); row++)
            for (int64_t head = 0; head < heads; head++)
                head_backward(args, partial + (head < args->heads ? 0 : size), row, head, size);
    }
    cpu_add_partials(args->dq_weight, partials, blocks, 2 * size);
    cpu_add_partials(args->dk_weight, partials + size, blocks, 2 * size);
}
