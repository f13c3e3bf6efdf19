#include "kernels/dropout.h"

#include <assert.h>

#include "kernels/cpu/cpu.h"

/* Drops columns first .. first + count of a row. */
static void drop(const struct dropout_args *args, struct rounding_key key, int64_t row,
                 int64_t first, int64_t count) {
    float buffer[CPU_BLOCK], values[CPU_BLOCK];
    const struct tensor *in = args->in, *out = args->out;
    const uint32_t threshold = dropout_threshold(args->probability);
    const float scale = dropout_scale(args->scale, args->probability);
    int64_t at = row * tensor_columns(in) + first;
    const float *x = dtype_widen(buffer, in->data, in->dtype, (size_t)at, (size_t)count);
    if (args->probability == 0)
        for (int64_t i = 0; i < count; i++) values[i] = scale * x[i];
    else
        for (int64_t i = 0; i < count; i++) {
            uint32_t kept = dropout_draw(key, first + i) < threshold ? 0 : UINT32_MAX;
            values[i] = f32_of_bits(f32_bits(scale * x[i]) & kept); /* without a branch */
        }
    if (args->accumulate) cpu_accumulate(out, at, values, count);
    else dtype_store(out->data, out->dtype, (size_t)at, values, (size_t)count);
    cpu_track_amax(args->track_amax, out, at, count);
}

void cpu_dropout(struct backend *be, const struct dropout_args *args) {
    (void)be;
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    assert(tensor_count(args->out) == rows * columns);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        struct rounding_key key = args->key;
        if (args->probability > 0) key = rounding_row_key(key, args->inputs->first_row + row);
        for (int64_t first = 0; first < columns; first += CPU_BLOCK)
            drop(args, key, row, first, block_length(first, columns, CPU_BLOCK));
    }
}
