#include <assert.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/gelu.h"

static inline float logistic(float x) {
    return 1.0f / (1.0f + exp_f32(-x));
}

/* out = f(gate) * up. */
static void forward(float *out, const float *gate, const float *up, int64_t n,
                    enum gate_function f) {
    if (f == GATE_GELU)
#pragma omp simd
        for (int64_t k = 0; k < n; k++) out[k] = gelu(gate[k]) * up[k];
    else if (f == GATE_SIGMOID)
#pragma omp simd
        for (int64_t k = 0; k < n; k++) out[k] = logistic(gate[k]) * up[k];
    else
#pragma omp simd
        for (int64_t k = 0; k < n; k++) out[k] = gate[k] * logistic(gate[k]) * up[k];
}

/* Values of up: a tensor of its own, or the second half of the rows of gate_up. */
static struct tensor up_of(const struct tensor *gate_up, const struct tensor *up) {
    struct tensor half = *gate_up;
    const int64_t columns = tensor_columns(gate_up) / 2;
    if (up) return *up;
    half.data = (char *)half.data + (size_t)columns * dtype_bytes(half.dtype);
    return half;
}

void cpu_gated_forward(struct backend *be, const struct gated_forward_args *args) {
    (void)be;
    const struct tensor *in = args->gate_up, *out = args->out;
    const struct tensor ups = up_of(in, args->up);
    int64_t rows = tensor_rows(out), columns = tensor_columns(out), stride = tensor_columns(in);
    int64_t up_stride = tensor_columns(&ups), blocks = blocks_of(columns, CPU_BLOCK);
    assert(tensor_rows(in) == rows && ups.dtype == in->dtype);
    assert(args->up ? args->gate_column + columns <= stride : stride == 2 * columns);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows * blocks; i++) {
        float gate_buffer[CPU_BLOCK], up_buffer[CPU_BLOCK], values[CPU_BLOCK];
        int64_t row = i / blocks, c = i % blocks * CPU_BLOCK;
        int64_t n = block_length(c, columns, CPU_BLOCK);
        int64_t at = row * stride + args->gate_column + c, at_up = row * up_stride + c;
        const float *gate = dtype_widen(gate_buffer, in->data, in->dtype, at, n);
        const float *up = dtype_widen(up_buffer, ups.data, ups.dtype, at_up, n);
        forward(values, gate, up, n, args->gate);
        dtype_store(out->data, out->dtype, row * columns + c, values, n);
        cpu_track_amax(args->track_amax, out, row * columns + c, n);
    }
}

/* silu'(x) = s + x s (1 - s), where s is the logistic function. */
static void backward(float *dgate, float *dup, const float *d, const float *gate, const float *up,
                     int64_t n, enum gate_function f) {
    if (f == GATE_GELU)
#pragma omp simd
        for (int64_t k = 0; k < n; k++) {
            dup[k] = d[k] * gelu(gate[k]);
            dgate[k] = d[k] * up[k] * gelu_derivative(gate[k]);
        }
    else if (f == GATE_SIGMOID)
#pragma omp simd
        for (int64_t k = 0; k < n; k++) {
            float s = logistic(gate[k]);
            dup[k] = d[k] * s;
            dgate[k] = d[k] * up[k] * (s * (1.0f - s));
        }
    else
#pragma omp simd
        for (int64_t k = 0; k < n; k++) {
            float s = logistic(gate[k]);
            dup[k] = d[k] * gate[k] * s;
            dgate[k] = d[k] * up[k] * (s + gate[k] * s * (1.0f - s));
        }
}

void cpu_gated_backward(struct backend *be, const struct gated_backward_args *args) {
    (void)be;
    const struct tensor *in = args->gate_up, *dout = args->dout, *din = args->dgate_up;
    const struct tensor ups = up_of(in, args->up), dups = up_of(din, args->dup);
    int64_t rows = tensor_rows(dout), columns = tensor_columns(dout), stride = tensor_columns(in);
    int64_t up_stride = tensor_columns(&ups), blocks = blocks_of(columns, CPU_BLOCK);
    assert(tensor_rows(in) == rows && ups.dtype == in->dtype);
    assert(args->up ? args->gate_column + columns <= stride : stride == 2 * columns);
    assert(tensor_rows(din) == rows && tensor_columns(din) == stride && !args->up == !args->dup);
    assert(tensor_columns(&dups) == up_stride && dups.dtype == din->dtype);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows * blocks; i++) {
        float gate_buffer[CPU_BLOCK], up_buffer[CPU_BLOCK], dout_buffer[CPU_BLOCK];
        float dgate[CPU_BLOCK], dup[CPU_BLOCK];
        int64_t row = i / blocks, c = i % blocks * CPU_BLOCK;
        int64_t n = block_length(c, columns, CPU_BLOCK);
        int64_t at = row * stride + args->gate_column + c, at_up = row * up_stride + c;
        const float *gate = dtype_widen(gate_buffer, in->data, in->dtype, at, n);
        const float *up = dtype_widen(up_buffer, ups.data, ups.dtype, at_up, n);
        const float *d = dtype_widen(dout_buffer, dout->data, dout->dtype, row * columns + c, n);
        backward(dgate, dup, d, gate, up, n, args->gate);
        dtype_store(din->data, din->dtype, at, dgate, n);
        dtype_store(dups.data, dups.dtype, at_up, dup, n);
        cpu_track_amax(args->track_amax, din, at, n);
        cpu_track_amax(args->track_amax, &dups, at_up, n);
    }
}
