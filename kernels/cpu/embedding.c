#include <assert.h>

#include "kernels/cpu/cpu.h"

enum { COLUMN_BLOCK = 64 }; /* columns of the tables that one thread owns in the backward pass */

void cpu_embedding_forward(struct backend *be, const struct embedding_forward_args *args) {
    (void)be;
    const struct tensor *out = args->out, *token = args->token_table, *place = args->position_table;
    int64_t rows = tensor_rows(out), columns = tensor_columns(out);
    assert(tensor_columns(token) == columns && tensor_columns(place) == columns);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        float token_buffer[CPU_BLOCK], place_buffer[CPU_BLOCK], sum[CPU_BLOCK];
        int64_t token_at = args->tokens[row] * columns;
        int64_t place_at = row % args->sequence_length * columns;
        for (int64_t c = 0; c < columns; c += CPU_BLOCK) {
            int64_t n = block_length(c, columns, CPU_BLOCK);
            const float *t = dtype_widen(token_buffer, token->data, token->dtype, token_at + c, n);
            const float *p = dtype_widen(place_buffer, place->data, place->dtype, place_at + c, n);
            for (int64_t i = 0; i < n; i++) sum[i] = t[i] + p[i];
            dtype_store(out->data, out->dtype, row * columns + c, sum, n);
        }
    }
}

/* Two rows may hold the same token, so threads share columns out, not rows: each adds all rows,
 * in order, to the columns that it owns. */
void cpu_embedding_backward(struct backend *be, const struct embedding_backward_args *args) {
    (void)be;
    const struct tensor *dout = args->dout;
    int64_t rows = tensor_rows(dout), columns = tensor_columns(dout);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_of(columns, COLUMN_BLOCK); block++) {
        int64_t c = block * COLUMN_BLOCK, n = block_length(c, columns, COLUMN_BLOCK);
        float buffer[COLUMN_BLOCK];
        for (int64_t row = 0; row < rows; row++) {
            const float *d = dtype_widen(buffer, dout->data, dout->dtype, row * columns + c, n);
            cpu_accumulate(args->dtoken_table, args->tokens[row] * columns + c, d, n);
            cpu_accumulate(args->dposition_table, row % args->sequence_length * columns + c, d, n);
        }
    }
}
