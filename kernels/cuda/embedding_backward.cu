/* Gradients of the embedding tables.
 *
 * dout is read once for each table. The token table's gradient is read and written in as many rows
 * as there are distinct tokens. The limit is memory bandwidth; the sort moves 8 bytes a row, little
 * against C columns, but is a chain of short kernels (a few microseconds each).
 *
 * Rows with the same token must be added in a fixed order. They are sorted by token with a stable
 * radix sort, so that each token's rows are adjacent and in ascending order. The sorted rows are
 * cut into chunks of equal length; a block adds up the runs of its chunk. A run that begins and
 * ends inside is added to the table at once. Other runs leave their sum in the workspace, and the
 * block of the chunk in which the run began adds these up. So a frequent token is distributed over
 * many blocks. Given positions are handled like tokens; those that repeat with the sequence need no
 * sort. */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/plain_c.h"

enum {
    SUM_THREADS_MAX = 256,
    ROWS_AT_ONCE = 4, /* loads that a thread has in flight */
    RADIX_BITS = 8,
    RADIX = 1 << RADIX_BITS,
    CHUNKS_MAX = 2048,
    CHUNK_ROWS_MIN = 32,
    SORT_CHUNKS_MAX = 512,
    SORT_CHUNK_ROWS_MIN = 512,
};

/* ---- sorting rows by token: passes over 8 bits of the token each, the lowest first, each stable
 */

/* A row of dout and its token. */
struct token_row {
    int32_t token, row;
};

/* The first pass reads the tokens as given, row after row. */
static __device__ __forceinline__ struct token_row token_row_at(const struct token_row *token_rows,
                                                                const int32_t *tokens, int at) {
    if (token_rows) return token_rows[at];
    struct token_row token_row = {tokens[at], at};
    return token_row;
}

static __device__ __forceinline__ int digit_of(struct token_row token_row, int shift) {
    return token_row.token >> shift & (RADIX - 1);
}

/* counts [chunks, RADIX]: occurrences of each digit in each chunk. A warp per chunk. */
static __global__ void __launch_bounds__(WARP)
    count_digits_kernel(int32_t *__restrict__ counts,
                        const struct token_row *__restrict__ token_rows,
                        const int32_t *__restrict__ tokens, int rows, int chunk_rows, int shift) {
    __shared__ int count[RADIX];
    int lane = (int)threadIdx.x, first = (int)blockIdx.x * chunk_rows;
    int last = rows - first < chunk_rows ? rows : first + chunk_rows;
    for (int digit = lane; digit < RADIX; digit += WARP) count[digit] = 0;
    __syncwarp();
    for (int at = first + lane; at < last; at += WARP)
        atomicAdd(&count[digit_of(token_row_at(token_rows, tokens, at), shift)], 1);
    __syncwarp();
    for (int digit = lane; digit < RADIX; digit += WARP)
        counts[(int)blockIdx.x * RADIX + digit] = count[digit];
}

static __device__ __forceinline__ int warp_scan(int value) { /* inclusive */
    for (int offset = 1; offset < WARP; offset *= 2) {
        int other = __shfl_up_sync(0xffffffffu, value, (unsigned)offset);
        if ((int)threadIdx.x % WARP >= offset) value += other;
    }
    return value;
}

/* start [RADIX]: index of the first row with each digit in the block's chunk: after all lower
 * digits, and after this digit in earlier chunks. A thread per digit. Every block adds up all
 * counts, which costs less than a separate kernel. */
static __device__ __forceinline__ void find_starts(int start[RADIX], const int32_t *counts) {
    __shared__ int warp_total[RADIX / WARP];
    int digit = (int)threadIdx.x, warp = digit / WARP, earlier = 0, all = 0;
#pragma unroll 8
    for (int chunk = 0; chunk < (int)gridDim.x; chunk++) {
        int count = counts[chunk * RADIX + digit];
        all += count;
        if (chunk < (int)blockIdx.x) earlier += count;
    }
    int through = warp_scan(all);
    if (digit % WARP == WARP - 1) warp_total[warp] = through;
    __syncthreads();
    int before = through - all;
    for (int w = 0; w < warp; w++) before += warp_total[w];
    start[digit] = before + earlier;
    __syncthreads();
}

/* Moves rows to their sorted positions. One warp processes the block's chunk in order, 32 at
 * a time; among equal digits the lower lane comes first. */
static __global__ void __launch_bounds__(RADIX)
    scatter_kernel(struct token_row *__restrict__ sorted, const int32_t *__restrict__ counts,
                   const struct token_row *__restrict__ token_rows,
                   const int32_t *__restrict__ tokens, int rows, int chunk_rows, int shift) {
    __shared__ int start[RADIX];
    int lane = (int)threadIdx.x, first = (int)blockIdx.x * chunk_rows;
    int last = rows - first < chunk_rows ? rows : first + chunk_rows;
    find_starts(start, counts);
    if (lane >= WARP) return;
    for (int base = first; base < last; base += WARP) {
        bool inside = base + lane < last;
        struct token_row token_row = token_row_at(token_rows, tokens, inside ? base + lane : first);
        int digit = digit_of(token_row, shift);
        unsigned peers = __ballot_sync(0xffffffffu, inside);
        for (int bit = 0; bit < RADIX_BITS; bit++) {
            unsigned set = __ballot_sync(0xffffffffu, digit >> bit & 1);
            peers &= digit >> bit & 1 ? set : ~set;
        }
        int rank = __popc(peers & ((1u << lane) - 1));
        int to = start[digit] + rank;
        __syncwarp();
        if (inside) sorted[to] = token_row;
        if (inside && rank == 0) start[digit] += __popc(peers);
        __syncwarp();
    }
}

/* ---- backward: the token table */

/* Arguments of the token table's kernels. */
struct token_sums {
    struct array dtable;
    float *leading;  /* [chunks, C]: sums of the run that began in an earlier chunk */
    float *trailing; /* [chunks, C]: sums of the run that begins in this chunk and continues
                        after it */
    const void *dout;
    const struct token_row *token_rows; /* [N], sorted */
    int64_t rows, columns;
    int64_t chunk_rows;
    float scale; /* factor of dout */
};

/* Grid: chunks x tiles of columns. */
template <typename Table, typename Dout, bool PACKED>
static __global__ void __launch_bounds__(SUM_THREADS_MAX, 4)
    token_sums_kernel(struct token_sums a) {
    int64_t column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * PACK;
    int count = columns_from(column, a.columns);
    if (count <= 0) return;
    int64_t first = blockIdx.x * a.chunk_rows, border = blockIdx.x * a.columns + column;
    int64_t last = first + a.chunk_rows < a.rows ? first + a.chunk_rows : a.rows;
    const Dout *dout = (const Dout *)a.dout + column;
    Table *dtable = (Table *)a.dtable.data + column;
    int32_t token = a.token_rows[first].token;
    bool continued = first > 0 && a.token_rows[first - 1].token == token;
    float sum[PACK] = {0}, table[PACK];
    for (int64_t base = first; base < last; base += ROWS_AT_ONCE) {
        float values[ROWS_AT_ONCE][PACK];
        struct token_row token_row[ROWS_AT_ONCE];
#pragma unroll
        for (int j = 0; j < ROWS_AT_ONCE; j++)
            token_row[j] = a.token_rows[base + j < last ? base + j : last - 1];
#pragma unroll
        for (int j = 0; j < ROWS_AT_ONCE; j++)
            load_columns<PACKED>(values[j], dout + token_row[j].row * a.columns, count);
#pragma unroll
        for (int j = 0; j < ROWS_AT_ONCE; j++) {
            if (base + j >= last) continue;
            if (token_row[j].token != token) { /* the run has ended */
                if (continued) {
                    store_columns<PACKED>(a.leading + border, sum, count);
                } else {
                    load_columns<PACKED>(table, dtable + token * a.columns, count);
                    for (int i = 0; i < PACK; i++) table[i] = fmaf(a.scale, sum[i], table[i]);
                    store_columns<PACKED>(dtable + token * a.columns, table, count);
                }
                token = token_row[j].token, continued = false;
                for (int i = 0; i < PACK; i++) sum[i] = 0;
            }
            for (int i = 0; i < PACK; i++) sum[i] += values[j][i];
        }
    }
    bool continues = last < a.rows && a.token_rows[last].token == token;
    if (continued || continues) {
        store_columns<PACKED>((continued ? a.leading : a.trailing) + border, sum, count);
    } else {
        load_columns<PACKED>(table, dtable + token * a.columns, count);
        for (int i = 0; i < PACK; i++) table[i] = fmaf(a.scale, sum[i], table[i]);
        store_columns<PACKED>(dtable + token * a.columns, table, count);
    }
}

/* Returns the last chunk that begins with this token; `chunk` begins or ends with it. */
static __device__ __forceinline__ int64_t last_chunk_of(const struct token_sums &a, int32_t token,
                                                        int64_t chunk) {
    int64_t high = (a.rows - 1) / a.chunk_rows;
    while (chunk < high) {
        int64_t middle = (chunk + high + 1) / 2;
        if (a.token_rows[middle * a.chunk_rows].token == token) chunk = middle;
        else high = middle - 1;
    }
    return chunk;
}

/* Adds the parts of a run that spans chunks, in order. The block of the chunk in which the run
 * began does. */
template <bool PACKED>
static __global__ void __launch_bounds__(SUM_THREADS_MAX) long_runs_kernel(struct token_sums a) {
    int64_t column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * PACK;
    int count = columns_from(column, a.columns);
    int64_t chunk = blockIdx.x, first = chunk * a.chunk_rows, end = first + a.chunk_rows;
    if (count <= 0 || end >= a.rows) return;
    int32_t token = a.token_rows[end].token;
    bool continued = first > 0 && a.token_rows[first - 1].token == token;
    if (a.token_rows[end - 1].token != token || continued) return;
    int64_t last = last_chunk_of(a, token, chunk + 1);
    float sum[PACK];
    load_columns<PACKED>(sum, a.trailing + chunk * a.columns + column, count);
    for (chunk++; chunk <= last; chunk += ROWS_AT_ONCE) {
        float values[ROWS_AT_ONCE][PACK] = {{0}};
#pragma unroll
        for (int j = 0; j < ROWS_AT_ONCE; j++)
            if (chunk + j <= last)
                load_columns<PACKED>(values[j], a.leading + (chunk + j) * a.columns + column,
                                     count);
#pragma unroll
        for (int j = 0; j < ROWS_AT_ONCE; j++)
            for (int i = 0; i < PACK; i++) sum[i] += values[j][i];
    }
    for (int i = 0; i < PACK; i++) sum[i] *= a.scale;
    add_to_array(a.dtable, token * a.columns + column, sum, count);
}

/* ---- backward: the position table */

/* Grid: positions x tiles of columns. */
template <typename Dout, bool PACKED>
static __global__ void __launch_bounds__(SUM_THREADS_MAX)
    position_sums_kernel(struct array dtable, const Dout *__restrict__ dout, int64_t rows,
                         int64_t columns, int64_t sequence_length) {
    int64_t column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * PACK;
    int count = columns_from(column, columns);
    if (count <= 0) return;
    float sum[PACK] = {0};
    for (int64_t row = blockIdx.x; row < rows; row += ROWS_AT_ONCE * sequence_length) {
        float values[ROWS_AT_ONCE][PACK] = {{0}};
#pragma unroll
        for (int j = 0; j < ROWS_AT_ONCE; j++)
            if (row + j * sequence_length < rows)
                load_columns<PACKED>(values[j],
                                     dout + (row + j * sequence_length) * columns + column, count);
#pragma unroll
        for (int j = 0; j < ROWS_AT_ONCE; j++)
            for (int i = 0; i < PACK; i++) sum[i] += values[j][i];
    }
    add_to_array(dtable, blockIdx.x * columns + column, sum, count);
}

/* ---- backward: on the host */

/* The workspace: rows are sorted from one buffer to the other and back. */
struct workspace {
    struct token_row *token_rows[2];
    int32_t *counts; /* [chunks of the sort, RADIX] */
    float *leading, *trailing;
    size_t bytes;
};

static int64_t rows_per_chunk(int64_t rows, int64_t least, int64_t chunks_max) {
    int64_t chunk_rows = blocks_of(rows, chunks_max);
    return chunk_rows < least ? least : blocks_of(chunk_rows, WARP) * WARP;
}

static int64_t sum_chunk_rows(int64_t rows) {
    return rows_per_chunk(rows, CHUNK_ROWS_MIN, CHUNKS_MAX);
}

static int64_t sort_chunk_rows(int64_t rows) {
    return rows_per_chunk(rows, SORT_CHUNK_ROWS_MIN, SORT_CHUNKS_MAX);
}

static struct workspace lay_out(const struct tensor *dout, void *memory) {
    struct workspace w = {};
    struct arena arena = {(char *)memory, 0, SIZE_MAX};
    int64_t rows = tensor_rows(dout);
    int64_t borders = blocks_of(rows, sum_chunk_rows(rows)) * tensor_columns(dout);
    int64_t digits = blocks_of(rows, sort_chunk_rows(rows)) * RADIX;
    for (int i = 0; i < 2; i++)
        w.token_rows[i] = (struct token_row *)arena_take(&arena, rows * sizeof(struct token_row));
    w.counts = (int32_t *)arena_take(&arena, digits * sizeof(int32_t));
    w.leading = (float *)arena_take(&arena, borders * sizeof(float));
    w.trailing = (float *)arena_take(&arena, borders * sizeof(float));
    w.bytes = arena.used;
    return w;
}

size_t cuda_embedding_backward_scratch(struct backend *be,
                                       const struct embedding_backward_args *args) {
    (void)be;
    return lay_out(args->dout, NULL).bytes;
}

/* Returns the sorted rows. Bits above the vocabulary's highest are 0 and need no pass. */
static const struct token_row *sort_by_token(struct backend *be, const struct workspace *w,
                                             const int32_t *tokens, int64_t rows,
                                             int64_t vocabulary) {
    cudaStream_t stream = cuda_state(be)->compute;
    int chunk_rows = (int)sort_chunk_rows(rows), n = (int)rows;
    unsigned chunks = (unsigned)blocks_of(rows, chunk_rows);
    const struct token_row *from = NULL;
    struct token_row *to = w->token_rows[0];
    int shift = 0;
    do {
        LAUNCH(count_digits_kernel, chunks, WARP, 0, stream, w->counts, from, tokens, n, chunk_rows,
               shift);
        LAUNCH(scatter_kernel, chunks, RADIX, 0, stream, to, w->counts, from, tokens, n, chunk_rows,
               shift);
        from = to;
        to = w->token_rows[from == w->token_rows[0]];
        shift += RADIX_BITS;
    } while (shift < 31 && (vocabulary - 1) >> shift > 0);
    return from;
}

static unsigned column_tiles(int64_t columns, unsigned threads) {
    return (unsigned)blocks_of(columns, (int64_t)threads * PACK);
}

/* Adds row i of dout, times scale, to row tokens[i] of dtable. */
static void tokens_backward(struct backend *be, const struct embedding_backward_args *args,
                            const struct tensor *dtable, const int32_t *tokens, float scale) {
    const struct tensor *dout = args->dout;
    int64_t rows = tensor_rows(dout), columns = tensor_columns(dout);
    const struct workspace w =
        lay_out(dout, backend_workspace(be, cuda_embedding_backward_scratch(be, args)));
    struct token_sums a = {
        array_of(dtable),     w.leading, w.trailing, dout->data, NULL, rows, columns,
        sum_chunk_rows(rows), scale};
    a.token_rows = sort_by_token(be, &w, tokens, rows, tensor_rows(dtable));
    cuda_launched(be, "embedding_backward");
    if (be->failure.text[0]) return; /* the kernels below would index with unsorted rows */
    cudaStream_t stream = cuda_state(be)->compute;
    bool packed = a.dtable.packed && rows_are_packed(dout);
    unsigned threads = threads_for_columns(columns, SUM_THREADS_MAX);
    dim3 grid((unsigned)blocks_of(rows, a.chunk_rows), column_tiles(columns, threads));
    STORAGE_SWITCH(dtable->dtype, Table,
                   STORAGE_SWITCH(dout->dtype, Dout,
                                  LAUNCH((packed ? token_sums_kernel<Table, Dout, true>
                                                 : token_sums_kernel<Table, Dout, false>),
                                         grid, threads, 0, stream, a)));
    LAUNCH((columns % PACK == 0 ? long_runs_kernel<true> : long_runs_kernel<false>), grid, threads,
           0, stream, a);
}

static void positions_backward(struct backend *be, const struct embedding_backward_args *args) {
    const struct tensor *dtable = args->dposition_table, *dout = args->dout;
    int64_t rows = tensor_rows(dout), columns = tensor_columns(dout), T = args->sequence_length;
    cudaStream_t stream = cuda_state(be)->compute;
    unsigned threads = threads_for_columns(columns, SUM_THREADS_MAX);
    dim3 grid((unsigned)(rows < T ? rows : T), column_tiles(columns, threads));
    STORAGE_SWITCH(dout->dtype, Dout,
                   LAUNCH((rows_are_packed(dout) ? position_sums_kernel<Dout, true>
                                                 : position_sums_kernel<Dout, false>),
                          grid, threads, 0, stream, array_of(dtable), (const Dout *)dout->data,
                          rows, columns, T));
}

void cuda_embedding_backward(struct backend *be, const struct embedding_backward_args *args) {
    int64_t rows = tensor_rows(args->dout);
    assert(rows <= INT32_MAX);
    if (rows == 0) return;
    tokens_backward(be, args, args->dtoken_table, args->tokens, args->token_scale);
    if (args->dposition_table && args->positions)
        tokens_backward(be, args, args->dposition_table, args->positions, 1);
    else if (args->dposition_table) positions_backward(be, args);
    cuda_launched(be, "embedding_backward");
}
