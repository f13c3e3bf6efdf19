#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/heads.h"

/* 1 / sqrt(mean square + epsilon) of a head. */
static float head_rstd(const float *x, int64_t size, float epsilon) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; i++) squares += x[i] * x[i];
    return 1.0f / sqrtf(squares / (float)size + epsilon);
}

/* Norm, weight and rotation of one head, in place. */
static void head_forward(float *x, const float *weight, float weight_offset, const float *angles,
                         int64_t size, float epsilon) {
    float rstd = head_rstd(x, size, epsilon);
    for (int64_t i = 0; i < size; i++) x[i] *= rstd * (weight[i] + weight_offset);
    if (angles) head_rotate(x, angles, size, 1);
}

void cpu_qk_norm_forward(struct backend *be, const struct qk_norm_forward_args *args) {
    (void)be;
    const struct tensor *x = args->inout, *raw = args->raw;
    int64_t rows = tensor_rows(x), size = tensor_columns(args->q_weight);
    int64_t all = args->heads + args->kv_heads;
    assert(size <= CPU_BLOCK && all * size <= tensor_columns(x));
    assert(raw->dtype == x->dtype && tensor_columns(raw) == all * size);
    assert(args->q_weight->dtype == DTYPE_F32 && args->k_weight->dtype == DTYPE_F32);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *angles = angles_of(args->angles, args->positions, row, args->sequence_length);
        struct heads heads;
        for (int64_t first = 0; first < all; first += heads.count) {
            heads_read(&heads, x, row, first, all, size);
            dtype_store(raw->data, raw->dtype, (row * all + first) * size, heads.values, heads.n);
            for (int64_t i = 0; i < heads.count; i++) {
                const struct tensor *w = first + i < args->heads ? args->q_weight : args->k_weight;
                head_forward(heads.values + i * size, w->data, args->weight_offset, angles, size,
                             args->epsilon);
            }
            heads_write(&heads, x);
        }
    }
}

/* With d = dout * (weight + weight_offset) and h = in * rstd, the gradient is rstd * (d - h *
 * mean(d * h)). It replaces dout; the weight's gradient of this head is added to dweight [D]. */
static void head_backward(float *dout, float *dweight, const float *in, const float *weight,
                          float weight_offset, const float *angles, int64_t size, float epsilon) {
    float rstd = head_rstd(in, size, epsilon), sum = 0;
    if (angles) head_rotate(dout, angles, size, -1);
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < size; i++) {
        float h = in[i] * rstd;
        dweight[i] += dout[i] * h;
        sum += dout[i] * (weight[i] + weight_offset) * h;
    }
    float mean = sum / (float)size;
    for (int64_t i = 0; i < size; i++)
        dout[i] = rstd * (dout[i] * (weight[i] + weight_offset) - in[i] * rstd * mean);
}

/* Backward pass of one row; adds to dweights [2, D], of queries and of keys. */
static void row_backward(const struct qk_norm_backward_args *a, float *dweights, int64_t row) {
    int64_t size = tensor_columns(a->q_weight), all = a->heads + a->kv_heads;
    const float *angles = angles_of(a->angles, NULL, row, a->sequence_length);
    struct heads d, raw;
    for (int64_t first = 0; first < all; first += d.count) {
        heads_read(&d, a->dinout, row, first, all, size);
        heads_read(&raw, a->raw, row, first, all, size);
        for (int64_t i = 0; i < d.count; i++) {
            bool key = first + i >= a->heads;
            head_backward(d.values + i * size, dweights + key * size, raw.values + i * size,
                          (key ? a->k_weight : a->q_weight)->data, a->weight_offset, angles, size,
                          a->epsilon);
        }
        heads_write(&d, a->dinout);
    }
}

size_t cpu_qk_norm_backward_scratch(struct backend *be, const struct qk_norm_backward_args *args) {
    (void)be;
    int64_t blocks = blocks_of(tensor_rows(args->dinout), CPU_ROW_BLOCK);
    return (size_t)(blocks * 2 * tensor_columns(args->q_weight)) * sizeof(float);
}

void cpu_qk_norm_backward(struct backend *be, const struct qk_norm_backward_args *args) {
    int64_t rows = tensor_rows(args->dinout), size = tensor_columns(args->q_weight);
    int64_t blocks = blocks_of(rows, CPU_ROW_BLOCK);
    /* [blocks, 2, D]: dq_weight, dk_weight of each row block */
    float *partials = backend_workspace(be, cpu_qk_norm_backward_scratch(be, args));
    assert(size <= CPU_BLOCK);
    assert(tensor_columns(args->raw) == (args->heads + args->kv_heads) * size);
    assert(!args->dk_weight == !args->kv_heads);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        float *partial = partials + block * 2 * size;
        memset(partial, 0, (size_t)(2 * size) * sizeof *partial);
        int64_t first = block * CPU_ROW_BLOCK;
        for (int64_t row = first; row < first + block_length(first, rows, CPU_ROW_BLOCK); row++)
            row_backward(args, partial, row);
    }
    cpu_add_partials(args->dq_weight, partials, blocks, 2 * size);
    if (args->dk_weight) cpu_add_partials(args->dk_weight, partials + size, blocks, 2 * size);
}
