#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

/* 1 / sqrt(mean square + epsilon) of a head. */
static float head_rstd(const float *x, int64_t size, float epsilon) {
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < size; i++) squares += x[i] * x[i];
    return 1.0f / sqrtf(squares / (float)size + epsilon);
}

void cpu_gated_norm_forward(struct backend *be, const struct gated_norm_forward_args *args) {
    const struct tensor *in = args->in, *out = args->out, *gate = args->gate;
    const int64_t size = tensor_columns(args->weight), heads = tensor_columns(in) / size;
    const float *weight = args->weight->data;
    (void)be;
    assert(size <= CPU_BLOCK && heads * size == tensor_columns(in));
    assert(tensor_count(out) == tensor_count(in) && args->weight->dtype == DTYPE_F32);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < tensor_rows(in) * heads; i++) {
        float in_buffer[CPU_BLOCK], gate_buffer[CPU_BLOCK], values[CPU_BLOCK];
        const int64_t at = i / heads * tensor_columns(gate) + args->gate_column + i % heads * size;
        const float *x = dtype_widen(in_buffer, in->data, in->dtype, i * size, size);
        const float *z = dtype_widen(gate_buffer, gate->data, gate->dtype, at, size);
        const float rstd = head_rstd(x, size, args->epsilon);
#pragma omp simd
        for (int64_t j = 0; j < size; j++)
            values[j] = x[j] * rstd * weight[j] * z[j] / (1.0f + exp_f32(-z[j]));
        dtype_store(out->data, out->dtype, i * size, values, size);
    }
}

/* With h = in * rstd, s = silu(gate) and d = dout * weight * s, the gradient is rstd * (d - h *
 * mean(d * h)); dweight += dout * h * s. */
static void head_backward(float *din, float *dgate, float *dweight, const float *dout,
                          const float *in, const float *gate, const float *weight, int64_t size,
                          float epsilon) {
    const float rstd = head_rstd(in, size, epsilon);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < size; j++) {
        const float h = in[j] * rstd, l = 1.0f / (1.0f + exp_f32(-gate[j])), s = gate[j] * l;
        dgate[j] = dout[j] * h * weight[j] * (l + s * (1.0f - l));
        dweight[j] += dout[j] * h * s;
        din[j] = dout[j] * weight[j] * s;
        sum += din[j] * h;
    }
    const float mean = sum / (float)size;
    for (int64_t j = 0; j < size; j++) din[j] = rstd * (din[j] - in[j] * rstd * mean);
}

size_t cpu_gated_norm_backward_scratch(struct backend *be,
                                       const struct gated_norm_backward_args *args) {
    (void)be;
    int64_t blocks = blocks_of(tensor_rows(args->in), CPU_ROW_BLOCK);
    return (size_t)(blocks * tensor_columns(args->weight)) * sizeof(float);
}

void cpu_gated_norm_backward(struct backend *be, const struct gated_norm_backward_args *args) {
    const struct tensor *in = args->in, *dout = args->dout, *gate = args->gate;
    const struct tensor *din = args->din, *dgate = args->dgate;
    const int64_t size = tensor_columns(args->weight), heads = tensor_columns(in) / size;
    const int64_t rows = tensor_rows(in), blocks = blocks_of(rows, CPU_ROW_BLOCK);
    float *partials = backend_workspace(be, cpu_gated_norm_backward_scratch(be, args));
    assert(size <= CPU_BLOCK && heads * size == tensor_columns(in));
    assert(tensor_columns(dgate) == tensor_columns(gate));
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        float x[CPU_BLOCK], z[CPU_BLOCK], d[CPU_BLOCK], dx[CPU_BLOCK], dz[CPU_BLOCK];
        const int64_t first = block * CPU_ROW_BLOCK * heads;
        const int64_t count = block_length(first, rows * heads, CPU_ROW_BLOCK * heads);
        memset(partials + block * size, 0, (size_t)size * sizeof *partials);
        for (int64_t i = first; i < first + count; i++) {
            const int64_t at =
                i / heads * tensor_columns(gate) + args->gate_column + i % heads * size;
            head_backward(dx, dz, partials + block * size,
                          dtype_widen(d, dout->data, dout->dtype, i * size, size),
                          dtype_widen(x, in->data, in->dtype, i * size, size),
                          dtype_widen(z, gate->data, gate->dtype, at, size), args->weight->data,
                          size, args->epsilon);
            dtype_store(din->data, din->dtype, i * size, dx, size);
            dtype_store(dgate->data, dgate->dtype, at, dz, size);
        }
    }
    cpu_add_partials(args->dweight, partials, blocks, size);
}
