#include <assert.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

void cpu_accumulate(const struct tensor *tensor, int64_t offset, const float *values,
                    int64_t count) {
    if (tensor->dtype == DTYPE_F32) {
        float *out = (float *)tensor->data + offset;
        for (int64_t i = 0; i < count; i++) out[i] += values[i];
        return;
    }
    float sum[CPU_BLOCK];
    assert(count <= CPU_BLOCK);
    dtype_widen(sum, tensor->data, tensor->dtype, offset, count);
    for (int64_t i = 0; i < count; i++) sum[i] += values[i];
    dtype_store(tensor->data, tensor->dtype, offset, sum, count);
}

void cpu_add_partials(const struct tensor *out, const float *partials, int64_t blocks,
                      int64_t stride) {
    int64_t columns = tensor_count(out);
    float total[CPU_BLOCK];
    for (int64_t c = 0; c < columns; c += CPU_BLOCK) {
        int64_t n = block_length(c, columns, CPU_BLOCK);
        memset(total, 0, sizeof total);
        for (int64_t block = 0; block < blocks; block++)
            for (int64_t i = 0; i < n; i++) total[i] += partials[block * stride + c + i];
        cpu_accumulate(out, c, total, n);
    }
}

void cpu_sum_columns(const struct tensor *sums, const struct tensor *in) {
    enum { COLUMNS = 64 }; /* fixed width, so that the sums do not depend on the threads */
    int64_t rows = tensor_rows(in), columns = tensor_columns(in);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_of(columns, COLUMNS); block++) {
        float sum[COLUMNS] = {0}, buffer[COLUMNS];
        int64_t c = block * COLUMNS, n = block_length(c, columns, COLUMNS);
        for (int64_t row = 0; row < rows; row++) {
            const float *x = dtype_widen(buffer, in->data, in->dtype, row * columns + c, n);
            for (int64_t i = 0; i < n; i++) sum[i] += x[i];
        }
        cpu_accumulate(sums, c, sum, n);
    }
}

void cpu_column_sums(struct backend *be, const struct column_sums_args *args) {
    (void)be;
    cpu_sum_columns(args->sums, args->in);
}

size_t cpu_column_sums_scratch(struct backend *be, const struct column_sums_args *args) {
    (void)be, (void)args;
    return 0;
}

void cpu_cast(struct backend *be, const struct cast_args *args) {
    (void)be;
    const struct tensor *in = args->in, *out = args->out;
    int64_t count = tensor_count(out);
    assert(!dtype_is_quantized(in->dtype) && !dtype_is_quantized(out->dtype));
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_of(count, CPU_BLOCK); block++) {
        float buffer[CPU_BLOCK];
        int64_t first = block * CPU_BLOCK, n = block_length(first, count, CPU_BLOCK);
        const float *x = dtype_widen(buffer, in->data, in->dtype, first, n);
        if (args->masters) copy_masters(out->data, out->dtype, first, x, n);
        else dtype_store(out->data, out->dtype, first, x, n);
        cpu_track_amax(args->track_amax, out, first, n);
    }
}

void cpu_softcap(struct backend *be, const struct softcap_args *args) {
    (void)be;
    const struct tensor *x = args->inout;
    int64_t count = tensor_count(x);
    const float cap = args->cap;
    assert(cap > 0 && !dtype_is_quantized(x->dtype));
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_of(count, CPU_BLOCK); block++) {
        float buffer[CPU_BLOCK], values[CPU_BLOCK];
        int64_t first = block * CPU_BLOCK, n = block_length(first, count, CPU_BLOCK);
        const float *in = dtype_widen(buffer, x->data, x->dtype, first, n);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) values[i] = cap * tanh_f32(in[i] / cap);
        dtype_store(x->data, x->dtype, first, values, n);
    }
}

void cpu_copy_last_columns(struct backend *be, const struct copy_last_columns_args *args) {
    (void)be;
    const struct tensor *out = args->out, *in = args->in;
    size_t value = dtype_bytes(in->dtype), bytes = (size_t)tensor_columns(out) * value;
    size_t stride = (size_t)tensor_columns(in) * value;
    assert(out->dtype == in->dtype && bytes <= stride);
    assert(args->keys || tensor_rows(out) == tensor_rows(in));
    for (size_t row = 0; row < (size_t)tensor_rows(in); row++) {
        const size_t to =
            args->keys ? (size_t)decode_last_row(&args->keys[row], args->stride) : row;
        memcpy((char *)out->data + to * bytes, (const char *)in->data + (row + 1) * stride - bytes,
               bytes);
    }
}

void cpu_gather_rows(struct backend *be, const struct gather_rows_args *args) {
    (void)be;
    const struct tensor *out = args->out, *in = args->in;
    const size_t bytes = (size_t)tensor_columns(out) * dtype_bytes(out->dtype);
    assert(out->dtype == in->dtype && tensor_columns(out) == tensor_columns(in));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < tensor_rows(out); i++) {
        char *to = (char *)out->data + (size_t)i * bytes;
        if (args->rows[i] < 0) memset(to, 0, bytes);
        else memcpy(to, (const char *)in->data + (size_t)args->rows[i] * bytes, bytes);
    }
}

void cpu_clear(struct backend *be, const struct clear_args *args) {
    (void)be;
    enum { BYTES = 1 << 16 };
    int64_t bytes = (int64_t)args->bytes;
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_of(bytes, BYTES); block++) {
        int64_t first = block * BYTES;
        memset((char *)args->data + first, 0, (size_t)block_length(first, bytes, BYTES));
    }
}

void cpu_loss_sum(struct backend *be, const struct loss_sum_args *args) {
    (void)be;
    double total = 0;
    for (int64_t i = 0; i < args->count; i++) total += args->losses[i];
    *args->total += (float)(args->inputs ? total * args->inputs->loss_weight : total);
}
