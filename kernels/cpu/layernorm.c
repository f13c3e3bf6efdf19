#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

/* sum = in + residual for one row, rounded as it is stored. The rounded value is normalized,
 * because the backward pass reads it. */
static void add_residual(const struct layernorm_forward_args *a, int64_t offset, int64_t columns) {
    float in_buffer[CPU_BLOCK], residual_buffer[CPU_BLOCK], sum[CPU_BLOCK];
    for (int64_t c = 0; c < columns; c += CPU_BLOCK) {
        int64_t n = block_length(c, columns, CPU_BLOCK), at = offset + c;
        const float *in = dtype_widen(in_buffer, a->in->data, a->in->dtype, at, n);
        const float *residual =
            dtype_widen(residual_buffer, a->residual->data, a->residual->dtype, at, n);
        for (int64_t i = 0; i < n; i++) sum[i] = in[i] + residual[i];
        dtype_store(a->sum->data, a->sum->dtype, at, sum, n);
    }
}

static float row_mean(const struct tensor *in, int64_t offset, int64_t columns) {
    float buffer[CPU_BLOCK], total = 0;
    for (int64_t c = 0; c < columns; c += CPU_BLOCK) {
        int64_t n = block_length(c, columns, CPU_BLOCK);
        const float *x = dtype_widen(buffer, in->data, in->dtype, offset + c, n);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) sum += x[i];
        total += sum;
    }
    return total / (float)columns;
}

/* Two passes: the mean is known before squares are summed, so nothing cancels. */
static float row_variance(const struct tensor *in, int64_t offset, int64_t columns, float mean) {
    float buffer[CPU_BLOCK], total = 0;
    for (int64_t c = 0; c < columns; c += CPU_BLOCK) {
        int64_t n = block_length(c, columns, CPU_BLOCK);
        const float *x = dtype_widen(buffer, in->data, in->dtype, offset + c, n);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
        total += sum;
    }
    return total / (float)columns;
}

void cpu_layernorm_forward(struct backend *be, const struct layernorm_forward_args *args) {
    (void)be;
    const struct layernorm_forward_args *a = args;
    int64_t rows = tensor_rows(a->out), columns = tensor_columns(a->out);
    const struct tensor *normalized = a->residual ? a->sum : a->in;
    const float *weight = a->weight->data, *bias = a->bias ? a->bias->data : NULL;
    const float weight_offset = a->weight_offset;
    assert(!a->residual == !a->sum && a->weight->dtype == DTYPE_F32 && !a->mean == !a->bias);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        int64_t offset = row * columns;
        if (a->residual) add_residual(a, offset, columns);
        float mean = a->mean ? row_mean(normalized, offset, columns) : 0;
        float variance = row_variance(normalized, offset, columns, mean);
        float rstd = 1.0f / sqrtf(variance + a->epsilon);
        if (a->mean) a->mean[row] = mean;
        a->rstd[row] = rstd;
        float buffer[CPU_BLOCK], out[CPU_BLOCK];
        for (int64_t c = 0; c < columns; c += CPU_BLOCK) {
            int64_t n = block_length(c, columns, CPU_BLOCK);
            const float *x =
                dtype_widen(buffer, normalized->data, normalized->dtype, offset + c, n);
            if (bias)
                for (int64_t i = 0; i < n; i++)
                    out[i] = (x[i] - mean) * rstd * (weight[c + i] + weight_offset) + bias[c + i];
            else
                for (int64_t i = 0; i < n; i++)
                    out[i] = x[i] * rstd * (weight[c + i] + weight_offset);
            dtype_store(a->out->data, a->out->dtype, offset + c, out, n);
        }
        cpu_track_amax(a->track_amax, a->out, offset, columns);
    }
}

/* With d = dout * (weight + weight_offset) and h = (in - mean) * rstd, the gradient of a row is
 * rstd * (d - mean(d) - h * mean(d * h)), for RMS norm without mean(d). Computes the two means, and
 * adds dweight and dbias of the row to the partial sums of its row block. */
static void backward_sums(const struct layernorm_backward_args *a, int64_t row, int64_t columns,
                          float *partial, float *mean_d, float *mean_dh) {
    float dout_buffer[CPU_BLOCK], in_buffer[CPU_BLOCK];
    const float *weight = a->weight->data;
    const float weight_offset = a->weight_offset;
    float mean = a->mean ? a->mean[row] : 0, rstd = a->rstd[row], total_d = 0, total_dh = 0;
    for (int64_t c = 0; c < columns; c += CPU_BLOCK) {
        int64_t n = block_length(c, columns, CPU_BLOCK), at = row * columns + c;
        const float *dout = dtype_widen(dout_buffer, a->dout->data, a->dout->dtype, at, n);
        const float *in = dtype_widen(in_buffer, a->in->data, a->in->dtype, at, n);
        float *dweight = partial + c, *dbias = partial + columns + c;
        float sum_d = 0, sum_dh = 0;
#pragma omp simd reduction(+ : sum_d, sum_dh)
        for (int64_t i = 0; i < n; i++) {
            float h = (in[i] - mean) * rstd, d = dout[i] * (weight[c + i] + weight_offset);
            sum_d += d;
            sum_dh += d * h;
            dweight[i] += dout[i] * h;
            dbias[i] += dout[i];
        }
        total_d += sum_d;
        total_dh += sum_dh;
    }
    *mean_d = a->mean ? total_d / (float)columns : 0;
    *mean_dh = total_dh / (float)columns;
}

static void backward_row(const struct layernorm_backward_args *a, int64_t row, int64_t columns,
                         float mean_d, float mean_dh) {
    float dout_buffer[CPU_BLOCK], in_buffer[CPU_BLOCK], residual_buffer[CPU_BLOCK], din[CPU_BLOCK];
    const float *weight = a->weight->data;
    const float weight_offset = a->weight_offset;
    float mean = a->mean ? a->mean[row] : 0, rstd = a->rstd[row];
    for (int64_t c = 0; c < columns; c += CPU_BLOCK) {
        int64_t n = block_length(c, columns, CPU_BLOCK), at = row * columns + c;
        const float *dout = dtype_widen(dout_buffer, a->dout->data, a->dout->dtype, at, n);
        const float *in = dtype_widen(in_buffer, a->in->data, a->in->dtype, at, n);
        for (int64_t i = 0; i < n; i++) {
            float h = (in[i] - mean) * rstd, d = dout[i] * (weight[c + i] + weight_offset);
            din[i] = rstd * (d - mean_d - h * mean_dh);
        }
        if (a->dresidual) {
            const struct tensor *r = a->dresidual;
            const float *residual = dtype_widen(residual_buffer, r->data, r->dtype, at, n);
            for (int64_t i = 0; i < n; i++) din[i] += residual[i];
        }
        dtype_store(a->din->data, a->din->dtype, at, din, n);
        if (a->din_lower) dtype_store(a->din_lower->data, a->din_lower->dtype, at, din, n);
    }
    cpu_track_amax(a->track_amax, a->din_lower ? a->din_lower : a->din, row * columns, columns);
}

size_t cpu_layernorm_backward_scratch(struct backend *be,
                                      const struct layernorm_backward_args *args) {
    (void)be;
    int64_t blocks = blocks_of(tensor_rows(args->din), CPU_ROW_BLOCK);
    return (size_t)(blocks * 2 * tensor_columns(args->din)) * sizeof(float);
}

void cpu_layernorm_backward(struct backend *be, const struct layernorm_backward_args *args) {
    int64_t rows = tensor_rows(args->din), columns = tensor_columns(args->din);
    int64_t blocks = blocks_of(rows, CPU_ROW_BLOCK);
    /* [blocks, 2, C]: dweight, dbias of each row block */
    float *partials = backend_workspace(be, cpu_layernorm_backward_scratch(be, args));
    assert(!args->mean == !args->dbias);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        float *partial = partials + block * 2 * columns;
        memset(partial, 0, (size_t)(2 * columns) * sizeof *partial);
        int64_t first = block * CPU_ROW_BLOCK;
        for (int64_t row = first; row < first + block_length(first, rows, CPU_ROW_BLOCK); row++) {
            float mean_d, mean_dh;
            backward_sums(args, row, columns, partial, &mean_d, &mean_dh);
            backward_row(args, row, columns, mean_d, mean_dh);
        }
    }
    cpu_add_partials(args->dweight, partials, blocks, 2 * columns);
    if (args->dbias) cpu_add_partials(args->dbias, partials + columns, blocks, 2 * columns);
    if (args->column_sums)
        cpu_sum_columns(args->column_sums, args->din_lower ? args->din_lower : args->din);
}
