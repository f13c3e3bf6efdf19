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
        int64_t position_at = row % args->sequence_length * columns;
        for (int64_t c = 0; c < columns; c += CPU_BLOCK) {
            int64_t n = block_length(c, columns, CPU_BLOCK);
            const float *t = token_values(token_buffer, args, token_at + c, n);
            if (position) {
                const float *p = dtype_widen(position_buffer, position->data, position->dtype,
                                             position_at + c, n);
                for (int64_t i = 0; i < n; i++) sum[i] = t[i] + p[i];
            }
            dtype_store(out->data, out->dtype, row * columns + c, position ? sum : t, n);
        }
    }
}

/* A row of dout and its token. */
struct token_row {
    int32_t token, row;
};

/* Sorts by token, then by row. */
static int by_token(const void *a, const void *b) {
    const struct token_row *x = a, *y = b;
    return x->token != y->token ? (x->token > y->token) - (x->token < y->token)
                                : (x->row > y->row) - (x->row < y->row);
}

/* sum += n columns of a row of dout. */
static void add_row(float *sum, const struct tensor *dout, int64_t row, int64_t c, int64_t n) {
    float buffer[COLUMN_BLOCK];
    int64_t at = row * tensor_columns(dout) + c;
    const float *d = dtype_widen(buffer, dout->data, dout->dtype, at, n);
    for (int64_t i = 0; i < n; i++) sum[i] += d[i];
}

/* Rows with the same token are summed in fp32 first and added to the table once: in a 16-bit table
 * each small addition to a large sum would be lost. */
static void tokens_backward(const struct embedding_backward_args *args,
                            const struct token_row *token_rows, int64_t c, int64_t n) {
    int64_t rows = tensor_rows(args->dout), columns = tensor_columns(args->dout);
    for (int64_t i = 0; i < rows;) {
        float sum[COLUMN_BLOCK] = {0};
        int32_t token = token_rows[i].token;
        for (; i < rows && token_rows[i].token == token; i++)
            add_row(sum, args->dout, token_rows[i].row, c, n);
        cpu_accumulate(args->dtoken_table, token * columns + c, sum, n);
    }
}

static void positions_backward(const struct embedding_backward_args *args, int64_t c, int64_t n) {
    int64_t rows = tensor_rows(args->dout), columns = tensor_columns(args->dout);
    for (int64_t t = 0; t < args->sequence_length && t < rows; t++) {
        float sum[COLUMN_BLOCK] = {0};
        for (int64_t row = t; row < rows; row += args->sequence_length)
            add_row(sum, args->dout, row, c, n);
        cpu_accumulate(args->dposition_table, t * columns + c, sum, n);
    }
}

size_t cpu_embedding_backward_scratch(struct backend *be,
                                      const struct embedding_backward_args *args) {
    (void)be;
    return (size_t)tensor_rows(args->dout) * sizeof(struct token_row);
}

/* Two rows may have the same token, so threads divide the columns, not the rows. */
void cpu_embedding_backward(struct backend *be, const struct embedding_backward_args *args) {
    int64_t rows = tensor_rows(args->dout), columns = tensor_columns(args->dout);
    struct token_row *token_rows =
        backend_workspace(be, cpu_embedding_backward_scratch(be, args)); /* [N] */
    for (int64_t row = 0; row < rows; row++)
        token_rows[row] = (struct token_row){args->tokens[row], (int32_t)row};
    qsort(token_rows, (size_t)rows, sizeof *token_rows, by_token);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_of(columns, COLUMN_BLOCK); block++) {
        int64_t c = block * COLUMN_BLOCK, n = block_length(c, columns, COLUMN_BLOCK);
        tokens_backward(args, token_rows, c, n);
        if (args->dposition_table) positions_backward(args, c, n);
    }
}
