#include <assert.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"

enum {
    COLUMN_BLOCK = 64
}; /* columns of the tables that one thread processes in the backward pass */

static const float *token_values(float *buffer, const struct embedding_forward_args *args,
                                 int64_t at, int64_t count) {
    const struct tensor *table = args->token_table;
    if (!args->token_remainder) return dtype_widen(buffer, table->data, table->dtype, at, count);
    join_masters(buffer, (const uint16_t *)table->data + at, args->token_remainder + at, count);
    return buffer;
}

void cpu_embedding_forward(struct backend *be, const struct embedding_forward_args *args) {
    (void)be;
    const struct tensor *out = args->out, *token = args->token_table,
                        *position = args->position_table;
    int64_t rows = tensor_rows(out), columns = tensor_columns(out);
    assert(tensor_columns(token) == columns && (!position || tensor_columns(position) == columns));
    assert(!args->token_remainder || token->dtype == DTYPE_BF16);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        float token_buffer[CPU_BLOCK], position_buffer[CPU_BLOCK], sum[CPU_BLOCK];
        int64_t token_at = args->tokens[row] * columns;
        int64_t position_at =
            (args->positions ? args->positions[row] : row % args->sequence_length) * columns;
        for (int64_t c = 0; c < columns; c += CPU_BLOCK) {
            int64_t n = block_length(c, columns, CPU_BLOCK);
            const float *t = token_values(token_buffer, args, token_at + c, n);
            if (position) {
                const float *p = dtype_widen(position_buffer, position->data, position->dtype,
                                             position_at + c, n);
                for (int64_t i = 0; i < n; i++) sum[i] = args->token_scale * t[i] + p[i];
                t = sum;
            } else if (args->token_scale != 1) {
                for (int64_t i = 0; i < n; i++) sum[i] = args->token_scale * t[i];
                t = sum;
            }
            dtype_store(out->data, out->dtype, row * columns + c, t, n);
        }
    }
}

/* A row of dout, and the row of a table to which it is added. */
struct indexed_row {
    int32_t index, row;
};

/* Sorts by index, then by row. */
static int by_index(const void *a, const void *b) {
    const struct indexed_row *x = a, *y = b;
    return x->index != y->index ? (x->index > y->index) - (x->index < y->index)
                                : (x->row > y->row) - (x->row < y->row);
}

/* sum += scale * n columns of a row of dout. */
static void add_row(float *sum, const struct tensor *dout, float scale, int64_t row, int64_t c,
                    int64_t n) {
    float buffer[COLUMN_BLOCK];
    int64_t at = row * tensor_columns(dout) + c;
    const float *d = dtype_widen(buffer, dout->data, dout->dtype, at, n);
    for (int64_t i = 0; i < n; i++) sum[i] += scale * d[i];
}

/* Adds n columns of the sorted rows of dout, times scale, to a table. Rows with the same index are
 * summed in fp32 first and added once: in a 16-bit table each small addition to a large sum would
 * be lost. */
static void add_sorted(const struct tensor *table, const struct tensor *dout, float scale,
                       const struct indexed_row *sorted, int64_t c, int64_t n) {
    int64_t rows = tensor_rows(dout), columns = tensor_columns(dout);
    for (int64_t i = 0; i < rows;) {
        float sum[COLUMN_BLOCK] = {0};
        int32_t index = sorted[i].index;
        for (; i < rows && sorted[i].index == index; i++)
            add_row(sum, dout, scale, sorted[i].row, c, n);
        cpu_accumulate(table, index * columns + c, sum, n);
    }
}

/* table[indices[row]] += scale * dout[row]. Two rows may have the same index, so threads divide the
 * columns, not the rows. sorted: [N] of scratch memory. */
static void indices_backward(const struct tensor *table, const struct tensor *dout, float scale,
                             const int32_t *indices, struct indexed_row *sorted) {
    int64_t rows = tensor_rows(dout), columns = tensor_columns(dout);
    for (int64_t row = 0; row < rows; row++)
        sorted[row] = (struct indexed_row){indices[row], (int32_t)row};
    qsort(sorted, (size_t)rows, sizeof *sorted, by_index);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_of(columns, COLUMN_BLOCK); block++) {
        int64_t c = block * COLUMN_BLOCK;
        add_sorted(table, dout, scale, sorted, c, block_length(c, columns, COLUMN_BLOCK));
    }
}

/* The same for positions that repeat every sequence_length rows, which need no sorting. */
static void positions_backward(const struct embedding_backward_args *args) {
    int64_t rows = tensor_rows(args->dout), columns = tensor_columns(args->dout);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_of(columns, COLUMN_BLOCK); block++) {
        int64_t c = block * COLUMN_BLOCK, n = block_length(c, columns, COLUMN_BLOCK);
        for (int64_t t = 0; t < args->sequence_length && t < rows; t++) {
            float sum[COLUMN_BLOCK] = {0};
            for (int64_t row = t; row < rows; row += args->sequence_length)
                add_row(sum, args->dout, 1, row, c, n);
            cpu_accumulate(args->dposition_table, t * columns + c, sum, n);
        }
    }
}

size_t cpu_embedding_backward_scratch(struct backend *be,
                                      const struct embedding_backward_args *args) {
    (void)be;
    return (size_t)tensor_rows(args->dout) * sizeof(struct indexed_row);
}

void cpu_embedding_backward(struct backend *be, const struct embedding_backward_args *args) {
    struct indexed_row *sorted = backend_workspace(be, cpu_embedding_backward_scratch(be, args));
    indices_backward(args->dtoken_table, args->dout, args->token_scale, args->tokens, sorted);
    if (!args->dposition_table) return;
    if (args->positions)
        indices_backward(args->dposition_table, args->dout, 1, args->positions, sorted);
    else positions_backward(args);
}
