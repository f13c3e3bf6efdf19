#include <assert.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

/* Copies or adds one row of a part, at most CPU_BLOCK values at a time, times scale. */
static void put_row(const struct tensor *to, int64_t to_first, const struct tensor *from,
                    int64_t from_first, int64_t count, float scale, bool accumulate) {
    float values[CPU_BLOCK];
    for (int64_t at = 0; at < count; at += CPU_BLOCK) {
        int64_t n = block_length(at, count, CPU_BLOCK);
        const float *in = (const float *)from->data + from_first + at;
        for (int64_t i = 0; i < n; i++) values[i] = scale * in[i];
        if (accumulate) cpu_accumulate(to, to_first + at, values, n);
        else dtype_store(to->data, to->dtype, (size_t)(to_first + at), values, (size_t)n);
    }
}

void cpu_block_diagonal_forward(struct backend *be,
                                const struct block_diagonal_forward_args *args) {
    (void)be;
    const struct tensor *out = args->out;
    int64_t rows = tensor_rows(out), columns = tensor_columns(out);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        int64_t column = 0;
        memset((char *)out->data + dtype_size(out->dtype, row * columns), 0,
               dtype_size(out->dtype, columns));
        for (int i = 0; i < args->count; i++) {
            const struct diagonal_block *block = &args->blocks[i];
            int64_t at = row - block->first_row, width = tensor_columns(&block->part);
            assert(block->part.dtype == DTYPE_F32);
            if (at >= 0 && at < tensor_rows(&block->part))
                put_row(out, row * columns + column, &block->part, at * width, width, args->scale,
                        false);
            column += width;
        }
    }
}

void cpu_block_diagonal_backward(struct backend *be,
                                 const struct block_diagonal_backward_args *args) {
    (void)be;
    int64_t columns = tensor_columns(args->dout), column = 0;
    assert(args->dout->dtype == DTYPE_F32);
    for (int i = 0; i < args->count; i++) {
        const struct diagonal_block *block = &args->dblocks[i];
        int64_t width = tensor_columns(&block->part);
#pragma omp parallel for schedule(static)
        for (int64_t row = 0; row < tensor_rows(&block->part); row++)
            put_row(&block->part, row * width, args->dout,
                    (block->first_row + row) * columns + column, width, args->scale,
                    args->accumulate);
        column += width;
    }
}
