#include "kernels/cpu/gelu.h"

#include "kernels/cpu/cpu.h"

void cpu_gelu_forward(struct backend *be, const struct gelu_forward_args *args) {
    (void)be;
    const struct tensor *in = args->in, *out = args->out;
    int64_t count = tensor_count(out);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_of(count, CPU_BLOCK); block++) {
        float buffer[CPU_BLOCK], values[CPU_BLOCK];
        int64_t first = block * CPU_BLOCK, n = block_length(first, count, CPU_BLOCK);
        const float *x = dtype_widen(buffer, in->data, in->dtype, first, n);
        if (args->relu2)
            for (int64_t i = 0; i < n; i++) values[i] = x[i] > 0 ? x[i] * x[i] : 0 * x[i];
        else
#pragma omp simd
            for (int64_t i = 0; i < n; i++) values[i] = gelu(x[i]);
        dtype_store(out->data, out->dtype, first, values, n);
        cpu_track_amax(args->track_amax, out, first, n);
    }
}

void cpu_gelu_backward(struct backend *be, const struct gelu_backward_args *args) {
    (void)be;
    const struct tensor *in = args->in, *dout = args->dout, *din = args->din;
    int64_t count = tensor_count(din);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_of(count, CPU_BLOCK); block++) {
        float in_buffer[CPU_BLOCK], dout_buffer[CPU_BLOCK], values[CPU_BLOCK];
        int64_t first = block * CPU_BLOCK, n = block_length(first, count, CPU_BLOCK);
        const float *x = dtype_widen(in_buffer, in->data, in->dtype, first, n);
        const float *d = dtype_widen(dout_buffer, dout->data, dout->dtype, first, n);
        if (args->relu2)
            for (int64_t i = 0; i < n; i++) values[i] = d[i] * (x[i] > 0 ? 2 * x[i] : 0);
        else
#pragma omp simd
            for (int64_t i = 0; i < n; i++) values[i] = d[i] * gelu_derivative(x[i]);
        dtype_store(din->data, din->dtype, first, values, n);
        cpu_track_amax(args->track_amax, din, first, n);
    }
    if (args->column_sums) cpu_sum_columns(args->column_sums, din);
}

size_t cpu_gelu_backward_scratch(struct backend *be, const struct gelu_backward_args *args) {
    (void)be, (void)args;
    return 0;
}
