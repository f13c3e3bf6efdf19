/* Rows of tables. Bytes per element: a table row read (4 in fp32; the position's comes from cache),
 * the sum written. The limit is memory bandwidth. */
#include "kernels/cuda/columns.h"

enum { FORWARD_WARPS = 8 /* a warp per row */ };

template <typename Out, typename Token>
static __global__ void __launch_bounds__(FORWARD_WARPS *WARP)
    embedding_kernel(struct array out, const int32_t *__restrict__ tokens, struct array token_table,
                     struct array position_table, int64_t rows, int64_t columns,
                     int64_t sequence_length) {
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t row = (int64_t)blockIdx.x * FORWARD_WARPS + warp;
    if (row >= rows) return;
    bool packed = out.packed && token_table.packed;
    Out *to = (Out *)out.data + row * columns;
    const Token *token = (const Token *)token_table.data + tokens[row] * columns;
    int64_t position = row % sequence_length * columns;
    for (int64_t c = lane * PACK; c < columns; c += WARP * PACK) {
        float values[PACK], more[PACK];
        int count = columns_from(c, columns);
        load_array(more, position_table, position + c, count);
        if (packed) load_pack(values, token + c);
        else load_some(values, token + c, count);
        for (int i = 0; i < PACK; i++) values[i] += more[i];
        if (packed) store_pack(to + c, values);
        else store_some(to + c, values, count);
    }
}

void cuda_embedding_forward(struct backend *be, const struct embedding_forward_args *args) {
    const struct tensor *out = args->out, *token = args->token_table, *place = args->position_table;
    int64_t rows = tensor_rows(out), columns = tensor_columns(out);
    assert(tensor_columns(token) == columns && tensor_columns(place) == columns);
    if (rows == 0) return;
    unsigned blocks = (unsigned)blocks_of(rows, FORWARD_WARPS);
    STORAGE_SWITCH(
        out->dtype, Out,
        STORAGE_SWITCH(token->dtype, Token,
                       LAUNCH((embedding_kernel<Out, Token>), blocks, FORWARD_WARPS * WARP, 0,
                              cuda_state(be)->compute, array_of(out), args->tokens, array_of(token),
                              array_of(place), rows, columns, args->sequence_length)));
    cuda_launched(be, "embedding_forward");
}
