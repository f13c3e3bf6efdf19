/* Sums of embedding rows. Bytes per element: a table row read (4 in fp32; the position's comes from
 * cache), the sum written. The limit is memory bandwidth. */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/rounding.h"

enum { FORWARD_WARPS = 8 /* one warp per row */ };

/* Loads a pack of the table from element `at` on, of which count exist. */
template <typename Token>
static __device__ __forceinline__ void load_tokens(float *values, const Token *token,
                                                   const int16_t *, int64_t at, bool packed,
                                                   int count) {
    if (packed) load_pack(values, token + at);
    else load_some(values, token + at, count);
}

/* Loads a pack of split master weights. */
static __device__ __forceinline__ void load_tokens(float *values, const struct upper_bits *token,
                                                   const int16_t *remainder, int64_t at,
                                                   bool packed, int count) {
    union {
        uint4 bits;
        uint16_t at[PACK];
    } upper, lower;
    if (packed) {
        upper.bits = *(const uint4 *)(token + at);
        lower.bits = *(const uint4 *)(remainder + at);
    } else {
        for (int i = 0; i < PACK; i++) {
            upper.at[i] = i < count ? token[at + i].bits : 0;
            lower.at[i] = i < count ? (uint16_t)remainder[at + i] : 0;
        }
    }
    for (int i = 0; i < PACK; i++)
        values[i] = __uint_as_float(joined_bits(upper.at[i], (int16_t)lower.at[i]));
}

template <typename Out, typename Token>
static __global__ void __launch_bounds__(FORWARD_WARPS *WARP)
    embedding_kernel(struct array out, const int32_t *__restrict__ tokens, struct array token_table,
                     const int16_t *__restrict__ token_remainder, struct array position_table,
                     const int32_t *__restrict__ positions, int64_t rows, int64_t columns,
                     int64_t sequence_length, float token_scale) {
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t row = (int64_t)blockIdx.x * FORWARD_WARPS + warp;
    if (row >= rows) return;
    bool packed = out.packed && token_table.packed;
    Out *to = (Out *)out.data + row * columns;
    int64_t token = tokens[row] * columns;
    int64_t position = (positions ? positions[row] : row % sequence_length) * columns;
    for (int64_t c = lane * PACK; c < columns; c += WARP * PACK) {
        float values[PACK], more[PACK] = {0};
        int count = columns_from(c, columns);
        if (position_table.data) load_array(more, position_table, position + c, count);
        load_tokens(values, (const Token *)token_table.data, token_remainder, token + c, packed,
                    count);
        for (int i = 0; i < PACK; i++) values[i] = fmaf(token_scale, values[i], more[i]);
        if (packed) store_pack(to + c, values);
        else store_some(to + c, values, count);
    }
}

template <typename Out, typename Token>
static void launch(struct backend *be, const struct embedding_forward_args *args) {
    int64_t rows = tensor_rows(args->out), columns = tensor_columns(args->out);
    struct array token = array_of(args->token_table);
    token.packed = token.packed && (uintptr_t)args->token_remainder % 16 == 0;
    LAUNCH((embedding_kernel<Out, Token>), (unsigned)blocks_of(rows, FORWARD_WARPS),
           FORWARD_WARPS * WARP, 0, cuda_state(be)->compute, array_of(args->out), args->tokens,
           token, args->token_remainder, array_of(args->position_table), args->positions, rows,
           columns, args->sequence_length, args->token_scale);
}

void cuda_embedding_forward(struct backend *be, const struct embedding_forward_args *args) {
    const struct tensor *out = args->out, *token = args->token_table,
                        *position = args->position_table;
    assert(tensor_columns(token) == tensor_columns(out));
    assert(!position || tensor_columns(position) == tensor_columns(out));
    assert(!args->token_remainder || token->dtype == DTYPE_BF16);
    if (tensor_rows(out) == 0) return;
    STORAGE_SWITCH(out->dtype, Out, {
        if (args->token_remainder) launch<Out, struct upper_bits>(be, args);
        else STORAGE_SWITCH(token->dtype, Token, (launch<Out, Token>(be, args)));
    });
    cuda_launched(be, "embedding_forward");
}
