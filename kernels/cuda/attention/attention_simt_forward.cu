/* Causal attention, forward, in fp32 by plain threads: any dtypes, any head width up to 256.
 *
 * A block has a tile of queries of one head and streams the keys up to its last query, with the
 * online softmax of Milakov and Gimelshein 2018, as in FlashAttention (Dao et al. 2022). The two
 * products run at some 3 reads of 16 bytes from shared memory per 32 multiplications of a thread.
 * Values are copied during the scores and, where shared memory holds a second tile of them, the
 * next keys during the whole step. */
#include <math.h>
#include <string.h>

#include "kernels/cuda/attention/attention_simt.h"

/* Online softmax of rows of queries: exponents are relative to the largest scaled score so far; sum
 * covers this thread's columns only, until the end. */
template <int ROWS> struct softmax_state { float shift[ROWS], sum[ROWS]; };

/* Turns scores into weights, and rescales earlier sums to the new shift. */
template <int W, int QUERIES, int KEYS>
static __device__ __forceinline__ void
softmax_update(float s[QUERIES / ROW_GROUPS][KEYS / COLUMN_GROUPS],
               float out[QUERIES / ROW_GROUPS][W / 32][QUAD],
               struct softmax_state<QUERIES / ROW_GROUPS> *state,
               const int first_keys[QUERIES / ROW_GROUPS], float exponent_scale, int query,
               int key) {
#pragma unroll
    for (int i = 0; i < QUERIES / ROW_GROUPS; i++) {
        float shift = -INFINITY, sum = 0;
#pragma unroll
        for (int j = 0; j < KEYS / COLUMN_GROUPS; j++) {
            int at = key + j * COLUMN_GROUPS;
            bool visible = at <= query + i * ROW_GROUPS && at >= first_keys[i];
            if (!visible) s[i][j] = -INFINITY;
            shift = fmaxf(shift, s[i][j]);
        }
        shift = fmaxf(state->shift[i], row_max(shift) * exponent_scale);
        float base = shift == -INFINITY ? 0 : shift; /* the row has seen no key yet */
#pragma unroll
        for (int j = 0; j < KEYS / COLUMN_GROUPS; j++) {
            s[i][j] = exp2f(s[i][j] * exponent_scale - base);
            sum += s[i][j];
        }
        float factor = exp2f(state->shift[i] - base); /* 0 for the first tile */
        state->sum[i] = state->sum[i] * factor + sum;
        state->shift[i] = shift;
#pragma unroll
        for (int j = 0; j < W / 32; j++)
#pragma unroll
            for (int e = 0; e < QUAD; e++) out[i][j][e] *= factor;
    }
}

template <int ROWS>
static __device__ __forceinline__ void softmax_finish(const struct simt_problem *problem, int head,
                                                      int query, struct softmax_state<ROWS> *state,
                                                      float factor[ROWS]) {
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float sum = row_sum(state->sum[i]);
        int row = query + i * ROW_GROUPS;
        factor[i] = 1 / sum;
        if (column_group() == 0 && row < problem->length)
            problem->lse[(int64_t)head * problem->length + row] =
                state->shift[i] * LN_OF_2 + logf(sum);
    }
}

/* Shared memory: queries, values, keys of SLOTS steps. Weights overwrite the keys. */
template <int W, int QUERIES, int KEYS, int SLOTS> struct forward_tiles {
    enum {
        key_floats = KEYS * (W > QUERIES ? W : QUERIES),
        bytes = (QUERIES * W + KEYS * W + SLOTS * key_floats) * 4
    };
};

template <int W, int QUERIES, int KEYS, int SLOTS, int BLOCKS>
static __global__ void __launch_bounds__(SIMT_THREADS, BLOCKS)
    attention_simt_forward_kernel(const struct simt_problem problem) {
    const int rows = QUERIES / ROW_GROUPS;
    DYNAMIC_SHARED(float, q);
    float *v = q + QUERIES * W, *slots = v + KEYS * W;
    /* The last queries of a head see the most keys, so they come first. */
    int head = (int)blockIdx.x / problem.tiles;
    int begin = (problem.tiles - 1 - (int)blockIdx.x % problem.tiles) * QUERIES;
    int end = begin + QUERIES < problem.length ? begin + QUERIES : problem.length;
    int kv_head = head / problem.group;
    struct simt_rows queries = query_rows_of(&problem, problem.qkv, head);
    struct simt_rows keys = key_rows_of(&problem, problem.qkv, kv_head);
    struct simt_rows values = values_after(&problem, keys);
    struct softmax_state<rows> state;
    float out[rows][W / 32][QUAD], factor[rows];
    int first_keys[rows], batch = head / problem.heads;
    sums_clear<W, QUERIES>(out);
#pragma unroll
    for (int i = 0; i < rows; i++) {
        state.shift[i] = -INFINITY, state.sum[i] = 0;
        first_keys[i] = first_key_of(&problem, batch, begin + row_group() + i * ROW_GROUPS);
    }
    tile_fetch<W, QUERIES>(q, &queries, begin, &problem);
    int first = first_key_of(&problem, batch, begin) / KEYS * KEYS;
    if (SLOTS > 1) tile_fetch<W, KEYS>(slots, &keys, first, &problem);
    cp_async_commit();
    for (int key = first, slot = 0; key < end; key += KEYS, slot = SLOTS - 1 - slot) {
        float s[rows][KEYS / COLUMN_GROUPS];
        float *k = slots + slot * forward_tiles<W, QUERIES, KEYS, SLOTS>::key_floats;
        if (SLOTS == 1) {
            if (key > first) __syncthreads(); /* the last step has read its weights */
            tile_fetch<W, KEYS>(k, &keys, key, &problem);
            cp_async_commit();
        }
        cp_async_wait<0>();
        __syncthreads(); /* the keys are there, and the last step has read its values and weights */
        tile_fetch<W, KEYS>(v, &values, key, &problem);
        cp_async_commit();
        if (SLOTS > 1 && key + KEYS < end)
            tile_fetch<W, KEYS>(slots +
                                    (1 - slot) * forward_tiles<W, QUERIES, KEYS, SLOTS>::key_floats,
                                &keys, key + KEYS, &problem);
        cp_async_commit();
        scores<W, QUERIES, KEYS>(s, q, k, problem.width);
        cap_scores<rows, KEYS / COLUMN_GROUPS>(s, &problem);
        softmax_update<W, QUERIES, KEYS>(s, out, &state, first_keys, problem.exponent_scale,
                                         begin + row_group(), key + column_group());
        cp_async_wait<1>();
        __syncthreads(); /* the values are there, and all scores have been computed */
        scores_share<QUERIES, KEYS>(k, s);
        accumulate<W, QUERIES, KEYS>(out, k, v);
    }
    __syncthreads();
    softmax_finish(&problem, head, begin + row_group(), &state, factor);
    struct simt_rows results = query_rows_of(&problem, problem.out, head);
    sums_store<W, QUERIES>(q, &results, begin, &problem, out, factor);
}

/* BLOCKS: minimum of blocks on a multiprocessor, by which the compiler divides the registers. It is
 * not 4 for W = 64, although shared memory allows 4 on compute capability 9.0: 128 registers are
 * too few. */
template <int W, int QUERIES, int KEYS, int BLOCKS, int SLOTS = 1>
static void run(struct backend *be, struct simt_problem problem, int64_t all_heads) {
    size_t bytes = forward_tiles<W, QUERIES, KEYS, SLOTS>::bytes;
    problem.tiles = (int)blocks_of(problem.length, QUERIES);
    const void *kernel =
        (const void *)attention_simt_forward_kernel<W, QUERIES, KEYS, SLOTS, BLOCKS>;
    if (!cuda_shared(be, kernel, bytes, "attention_forward")) return;
    LAUNCH((attention_simt_forward_kernel<W, QUERIES, KEYS, SLOTS, BLOCKS>),
           (unsigned)(all_heads * problem.tiles), SIMT_THREADS, bytes, cuda_state(be)->compute,
           problem);
    cuda_launched(be, "attention_forward");
}

void attention_simt_forward(struct backend *be, const struct attention_forward_args *args,
                            const struct attention_shape *shape) {
    struct simt_problem problem = simt_problem(shape, attention_score(args->scale, args->softcap));
    int64_t all_heads = shape->batch * shape->heads;
    problem.qkv = simt_tensor(args->qkv, shape);
    problem.out = simt_tensor(args->out, shape);
    problem.lse = args->lse;
    problem.first_keys = args->first_keys;
    /* 32, 48, 64, 64 KB of shared memory, which compute capability 7.5 has too; with two slots 64,
     * of which 9.0 holds three blocks. */
    bool ahead = cuda_blocks_fit(cuda_state(be), 3, forward_tiles<64, 64, 64, 2>::bytes);
    if (shape->width <= 32) run<32, 64, 64, 3>(be, problem, all_heads);
    else if (shape->width <= 64 && ahead) run<64, 64, 64, 3, 2>(be, problem, all_heads);
    else if (shape->width <= 64) run<64, 64, 64, 3>(be, problem, all_heads);
    else if (shape->width <= 128) run<128, 64, 32, 3>(be, problem, all_heads);
    else run<256, 32, 16, 2>(be, problem, all_heads);
}
