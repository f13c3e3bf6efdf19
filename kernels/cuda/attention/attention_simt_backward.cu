/* Causal attention, backward, in fp32 by plain threads: any dtypes, any head width up to 256.
 *
 *     P = exp(S - lse), dP = dO V', delta = sum(dO * O), dS = P * (dP - delta)
 *     dV = P' dO, dK = dS' Q / sqrt(D), dQ = dS K / sqrt(D)       (FlashAttention, appendix B)
 *
 * With a soft cap S is the tanh, and dS is multiplied by 1 - S^2.
 *
 * There are three kernels: delta; dK and dV per tile of keys, over the queries that see it, one
 * query head after another; dQ per tile of queries, over the keys that it sees. S and dP are
 * computed twice, 7 products instead of 5, and in return every sum is computed by one block in one
 * order, without atomics. Where shared memory holds the streamed tiles of two steps, those of the
 * next are copied while one is computed. */
#include <math.h>
#include <string.h>

#include "kernels/cuda/attention/attention_simt.h"

enum { DELTA_THREADS = 256, DELTA_LANES = 8 };

/* Values d..d+7 of the row that starts at element `first`; zeros beyond the width. */
static __device__ __forceinline__ void
row_pack(float values[PACK], const struct simt_tensor *tensor, int64_t first, int d, int width) {
    STORAGE_SWITCH(tensor->dtype, T, {
        const T *from = (const T *)tensor->data + first + d;
        if (tensor->packed) load_pack(values, from);
        else load_some(values, from, width - d);
    });
}

/* Computes delta. Eight lanes process a row of a head; rows of dout and out are in the order [B, T,
 * H]. */
static __global__ void delta_kernel(const struct simt_problem problem, int64_t rows) {
    int64_t row = ((int64_t)blockIdx.x * DELTA_THREADS + threadIdx.x) / DELTA_LANES;
    int width = problem.width;
    float sum = 0;
    for (int d = (int)threadIdx.x % DELTA_LANES * PACK; row < rows && d < width;
         d += DELTA_LANES * PACK) {
        float out[PACK], dout[PACK];
        row_pack(out, &problem.out, row * width, d, width);
        row_pack(dout, &problem.dout, row * width, d, width);
        for (int i = 0; i < PACK; i++) sum += out[i] * dout[i];
    }
    for (int offset = 1; offset < DELTA_LANES; offset *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (row < rows && threadIdx.x % DELTA_LANES == 0) {
        int64_t token = row / problem.heads, head = row % problem.heads;
        int64_t batch = token / problem.length, t = token % problem.length;
        problem.delta[(batch * problem.heads + head) * problem.length + t] = sum;
    }
}

/* Values of the forward pass for a thread's rows of queries. */
template <int ROWS> struct query_rows { float lse[ROWS], delta[ROWS]; /* lse times log2(e) */ };

/* Loads queries query, query + STEP, ... */
template <int ROWS, int STEP>
static __device__ __forceinline__ void query_rows_load(struct query_rows<ROWS> *rows,
                                                       const struct simt_problem *problem, int head,
                                                       int query) {
    int64_t first = (int64_t)head * problem->length;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int at = query + i * STEP;
        bool exists = at < problem->length;
        rows->lse[i] = exists ? problem->lse[first + at] * LOG2_OF_E : 0;
        rows->delta[i] = exists ? problem->delta[first + at] : 0;
    }
}

/* Replaces a score by its weight, and the gradient of the weight by the gradient of the score. */
static __device__ __forceinline__ void softmax_backward(float *s, float *dp, float lse, float delta,
                                                        bool visible,
                                                        const struct simt_problem *problem) {
    float p = exp2f(*s * problem->exponent_scale - lse), t = fmaxf(*s, -1.0f); /* not -inf */
    float ds = p * (*dp - delta);
    if (problem->inner != 0) ds *= 1 - t * t;
    *s = visible ? p : 0;
    *dp = visible ? ds : 0;
}

/* Masks the scores of keys before the first of each query; rows are keys, or queries. query, key:
 * of this thread's first row and column. */
template <int ROWS, int COLUMNS, bool KEYS_DOWN>
static __device__ __forceinline__ void mask_before(float s[ROWS][COLUMNS],
                                                   const struct simt_problem *problem, int batch,
                                                   int query, int key) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            int row = i * ROW_GROUPS, column = j * COLUMN_GROUPS;
            int first = first_key_of(problem, batch, query + (KEYS_DOWN ? column : row));
            if (key + (KEYS_DOWN ? row : column) < first) s[i][j] = -INFINITY;
        }
}

/* Shared memory of both kernels: two held tiles, weights, and two streamed tiles of SLOTS steps. */
template <int W, int A, int B, int SLOTS> struct backward_tiles {
    enum { slot_floats = 2 * B * W, bytes = (2 * A * W + A * B + SLOTS * slot_floats) * 4 };
};

/* Tile of keys of a block, recomputed where it is needed because registers are scarce here. */
struct key_tile {
    int kv_head, begin; /* kv_head: index in B * H_kv */
};
template <int KEYS>
static __device__ __forceinline__ struct key_tile key_tile(const struct simt_problem *problem) {
    /* The first keys are seen by the most queries, so they come first. */
    int block = reread_block_index();
    struct key_tile tile = {block / problem->tiles, block % problem->tiles * KEYS};
    return tile;
}

/* Queries that a step streams: from row `at` on, of head `member` of those that read the keys. */
struct query_step {
    int at, member;
};

/* Queries are streamed tile by tile, one head after another. First keys do not decrease, so that no
 * query after one that does not see the tile sees it. */
template <int KEYS, int QUERIES, bool LIMITED>
static __device__ __forceinline__ struct query_step next_step(const struct simt_problem *problem,
                                                              struct query_step step) {
    struct key_tile tile = key_tile<KEYS>(problem);
    step.at += QUERIES;
    int batch = tile.kv_head / problem->kv_heads;
    if (step.at >= problem->length ||
        (LIMITED && first_key_of(problem, batch, step.at) >= tile.begin + KEYS))
        step.at = tile.begin, step.member++;
    return step;
}

/* Starts to copy a step's queries and their gradients to a slot. */
template <int W, int KEYS, int QUERIES>
static __device__ __forceinline__ void fetch_step(float *slot, const struct simt_problem *problem,
                                                  struct query_step step) {
    int head = key_tile<KEYS>(problem).kv_head * problem->group + step.member;
    struct simt_rows queries = query_rows_of(problem, problem->qkv, head);
    struct simt_rows results = query_rows_of(problem, problem->dout, head);
    tile_fetch<W, QUERIES>(slot, &queries, step.at, problem);
    tile_fetch<W, QUERIES>(slot + QUERIES * W, &results, step.at, problem);
}

template <int W, int KEYS, int QUERIES, int SLOTS, int BLOCKS, bool LIMITED>
static __global__ void __launch_bounds__(SIMT_THREADS, BLOCKS)
    key_gradients_kernel(const struct simt_problem problem) {
    const int rows = KEYS / ROW_GROUPS, columns = QUERIES / COLUMN_GROUPS;
    typedef struct backward_tiles<W, KEYS, QUERIES, SLOTS> tiles;
    DYNAMIC_SHARED(float, k);
    float *v = k + KEYS * W, *p = v + KEYS * W, *slots = p + KEYS * QUERIES;
    struct key_tile tile = key_tile<KEYS>(&problem);
    struct simt_rows keys = key_rows_of(&problem, problem.qkv, tile.kv_head);
    struct simt_rows values = values_after(&problem, keys);
    float dk[rows][W / 32][QUAD], dv[rows][W / 32][QUAD], factor[rows];
    sums_clear<W, KEYS>(dk);
    sums_clear<W, KEYS>(dv);
    tile_fetch<W, KEYS>(k, &keys, tile.begin, &problem);
    tile_fetch<W, KEYS>(v, &values, tile.begin, &problem);
    struct query_step now = {tile.begin, 0};
    if (SLOTS > 1) fetch_step<W, KEYS, QUERIES>(slots, &problem, now);
    cp_async_commit();
    for (int slot = 0; now.member < problem.group; slot = SLOTS - 1 - slot) {
        float s[rows][columns], dp[rows][columns];
        float *q = slots + slot * tiles::slot_floats, *dout = q + QUERIES * W;
        struct query_rows<columns> saved;
        tile = key_tile<KEYS>(&problem);
        int query = now.at + column_group(), head = tile.kv_head * problem.group + now.member;
        if (SLOTS == 1) {
            fetch_step<W, KEYS, QUERIES>(q, &problem, now);
            cp_async_commit();
        }
        query_rows_load<columns, COLUMN_GROUPS>(&saved, &problem, head, query);
        cp_async_wait<0>();
        __syncthreads(); /* the step's tiles are there, and the other slot has been read */
        now = next_step<KEYS, QUERIES, LIMITED>(&problem, now);
        if (SLOTS > 1 && now.member < problem.group)
            fetch_step<W, KEYS, QUERIES>(slots + (1 - slot) * tiles::slot_floats, &problem, now);
        cp_async_commit();
        scores<W, KEYS, QUERIES>(s, k, q, problem.width);
        scores<W, KEYS, QUERIES>(dp, v, dout, problem.width);
        cap_scores<rows, columns>(s, &problem);
        int key = tile.begin + row_group();
        if (LIMITED)
            mask_before<rows, columns, true>(s, &problem, tile.kv_head / problem.kv_heads, query,
                                             key);
#pragma unroll
        for (int i = 0; i < rows; i++)
#pragma unroll
            for (int j = 0; j < columns; j++) {
                int this_query = query + j * COLUMN_GROUPS;
                bool visible = key + i * ROW_GROUPS <= this_query && this_query < problem.length;
                softmax_backward(&s[i][j], &dp[i][j], saved.lse[j], saved.delta[j], visible,
                                 &problem);
            }
        scores_share<KEYS, QUERIES>(p, s);
        accumulate<W, KEYS, QUERIES>(dv, p, dout);
        scores_share<KEYS, QUERIES>(p, dp);
        accumulate<W, KEYS, QUERIES>(dk, p, q);
        if (SLOTS == 1) __syncthreads();
    }
    if (SLOTS > 1) __syncthreads();
    tile = key_tile<KEYS>(&problem);
    struct simt_rows dkeys = key_rows_of(&problem, problem.dqkv, tile.kv_head);
    struct simt_rows dvalues = values_after(&problem, dkeys);
#pragma unroll
    for (int i = 0; i < rows; i++) factor[i] = problem.scale;
    sums_store<W, KEYS>(k, &dkeys, tile.begin, &problem, dk, factor);
#pragma unroll
    for (int i = 0; i < rows; i++) factor[i] = 1;
    sums_store<W, KEYS>(v, &dvalues, tile.begin, &problem, dv, factor);
}

/* Starts to copy keys from row `at` on, and their values, to a slot. */
template <int W, int KEYS>
static __device__ __forceinline__ void fetch_keys(float *slot, const struct simt_problem *problem,
                                                  const struct simt_rows *keys, int at) {
    struct simt_rows values = values_after(problem, *keys);
    tile_fetch<W, KEYS>(slot, keys, at, problem);
    tile_fetch<W, KEYS>(slot + KEYS * W, &values, at, problem);
}

template <int W, int QUERIES, int KEYS, int SLOTS, int BLOCKS, bool LIMITED>
static __global__ void __launch_bounds__(SIMT_THREADS, BLOCKS)
    query_gradients_kernel(const struct simt_problem problem) {
    const int rows = QUERIES / ROW_GROUPS, columns = KEYS / COLUMN_GROUPS;
    typedef struct backward_tiles<W, QUERIES, KEYS, SLOTS> tiles;
    DYNAMIC_SHARED(float, q);
    float *dout = q + QUERIES * W, *p = dout + QUERIES * W, *slots = p + QUERIES * KEYS;
    int head = (int)blockIdx.x / problem.tiles;
    int begin = (problem.tiles - 1 - (int)blockIdx.x % problem.tiles) * QUERIES;
    int end = begin + QUERIES < problem.length ? begin + QUERIES : problem.length;
    int query = begin + row_group();
    int kv_head = head / problem.group;
    struct simt_rows queries = query_rows_of(&problem, problem.qkv, head);
    struct simt_rows results = query_rows_of(&problem, problem.dout, head);
    struct simt_rows keys = key_rows_of(&problem, problem.qkv, kv_head);
    struct query_rows<rows> saved;
    float dq[rows][W / 32][QUAD], factor[rows];
    sums_clear<W, QUERIES>(dq);
    query_rows_load<rows, ROW_GROUPS>(&saved, &problem, head, query);
    tile_fetch<W, QUERIES>(q, &queries, begin, &problem);
    tile_fetch<W, QUERIES>(dout, &results, begin, &problem);
    int first = LIMITED ? first_key_of(&problem, head / problem.heads, begin) / KEYS * KEYS : 0;
    if (SLOTS > 1) fetch_keys<W, KEYS>(slots, &problem, &keys, first);
    cp_async_commit();
    for (int at = first, slot = 0; at < end; at += KEYS, slot = SLOTS - 1 - slot) {
        float s[rows][columns], dp[rows][columns];
        float *k = slots + slot * tiles::slot_floats, *v = k + KEYS * W;
        int key = at + column_group();
        if (SLOTS == 1) {
            fetch_keys<W, KEYS>(k, &problem, &keys, at);
            cp_async_commit();
        }
        cp_async_wait<0>();
        __syncthreads(); /* the step's tiles are there, and the other slot has been read */
        if (SLOTS > 1 && at + KEYS < end)
            fetch_keys<W, KEYS>(slots + (1 - slot) * tiles::slot_floats, &problem, &keys,
                                at + KEYS);
        cp_async_commit();
        scores<W, QUERIES, KEYS>(s, q, k, problem.width);
        scores<W, QUERIES, KEYS>(dp, dout, v, problem.width);
        cap_scores<rows, columns>(s, &problem);
        if (LIMITED)
            mask_before<rows, columns, false>(s, &problem, head / problem.heads, query, key);
#pragma unroll
        for (int i = 0; i < rows; i++)
#pragma unroll
            for (int j = 0; j < columns; j++) {
                int this_query = query + i * ROW_GROUPS;
                bool visible = key + j * COLUMN_GROUPS <= this_query && this_query < problem.length;
                softmax_backward(&s[i][j], &dp[i][j], saved.lse[i], saved.delta[i], visible,
                                 &problem);
            }
        scores_share<QUERIES, KEYS>(p, dp);
        accumulate<W, QUERIES, KEYS>(dq, p, k);
        if (SLOTS == 1) __syncthreads();
    }
    if (SLOTS > 1) __syncthreads();
    struct simt_rows dqueries = query_rows_of(&problem, problem.dqkv, head);
#pragma unroll
    for (int i = 0; i < rows; i++) factor[i] = problem.scale;
    sums_store<W, QUERIES>(q, &dqueries, begin, &problem, dq, factor);
}

/* Tiles of A rows are held, tiles of B rows are streamed. BLOCKS: minimum of blocks on a
 * multiprocessor, by which the compiler divides the registers; the kernel for queries always uses
 * 3. */
template <int W, int A, int B, int SLOTS, int BLOCKS, bool LIMITED>
static void run_with(struct backend *be, struct simt_problem problem, int64_t batch) {
    size_t bytes = backward_tiles<W, A, B, SLOTS>::bytes;
    const char *what = "attention_backward";
    problem.tiles = (int)blocks_of(problem.length, A);
    unsigned key_blocks = (unsigned)(batch * problem.kv_heads * problem.tiles);
    unsigned query_blocks = (unsigned)(batch * problem.heads * problem.tiles);
    if (!cuda_shared(be, (const void *)key_gradients_kernel<W, A, B, SLOTS, BLOCKS, LIMITED>, bytes,
                     what) ||
        !cuda_shared(be, (const void *)query_gradients_kernel<W, A, B, SLOTS, 3, LIMITED>, bytes,
                     what))
        return;
    LAUNCH((key_gradients_kernel<W, A, B, SLOTS, BLOCKS, LIMITED>), key_blocks, SIMT_THREADS, bytes,
           cuda_state(be)->compute, problem);
    LAUNCH((query_gradients_kernel<W, A, B, SLOTS, 3, LIMITED>), query_blocks, SIMT_THREADS, bytes,
           cuda_state(be)->compute, problem);
    cuda_launched(be, what);
}

template <int W, int A, int B, int BLOCKS, int SLOTS = 1>
static void run(struct backend *be, struct simt_problem problem, int64_t batch) {
    if (problem.first_keys) run_with<W, A, B, SLOTS, BLOCKS, true>(be, problem, batch);
    else run_with<W, A, B, SLOTS, BLOCKS, false>(be, problem, batch);
}

size_t attention_simt_backward_bytes(const struct attention_shape *shape) {
    return (size_t)(shape->batch * shape->heads * shape->sequence) * sizeof(float);
}

void attention_simt_backward(struct backend *be, const struct attention_backward_args *args,
                             const struct attention_shape *shape) {
    struct simt_problem problem = simt_problem(shape, attention_score(args->scale, args->softcap));
    int64_t batch = shape->batch, rows = batch * shape->heads * shape->sequence;
    problem.qkv = simt_tensor(args->qkv, shape);
    problem.out = simt_tensor(args->out, shape);
    problem.dqkv = simt_tensor(args->dqkv, shape);
    problem.dout = simt_tensor(args->dout, shape);
    problem.lse = (float *)args->lse;
    problem.first_keys = args->first_keys;
    problem.delta = (float *)backend_workspace(be, attention_simt_backward_bytes(shape));
    unsigned blocks = (unsigned)blocks_of(rows, DELTA_THREADS / DELTA_LANES);
    LAUNCH(delta_kernel, blocks, DELTA_THREADS, 0, cuda_state(be)->compute, problem, rows);
    size_t shared = cuda_state(be)->shared_bytes;
    bool ahead = cuda_blocks_fit(cuda_state(be), 3, backward_tiles<64, 64, 32, 2>::bytes);
    if (shape->width <= 32) run<32, 64, 32, 2>(be, problem, batch);
    else if (shape->width <= 64 && ahead) run<64, 64, 32, 3, 2>(be, problem, batch);
    else if (shape->width <= 64) run<64, 64, 32, 3>(be, problem, batch);
    else if (shape->width <= 128 && shared >= backward_tiles<128, 32, 32, 1>::bytes)
        run<128, 32, 32, 3>(be, problem, batch);
    else run<256, 16, 8, 2>(be, problem, batch);
}
