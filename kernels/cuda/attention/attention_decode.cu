/* Attention of single queries over the keys and values of a cache, as in Flash-Decoding (Dao,
 * Haziza, Massa, Sizov 2023).
 *
 * A query head reads its keys and values once; heads that share them mostly hit the L2 cache. Few
 * queries have few heads, so the keys of a head are split into parts to fill the GPU. One block of
 * threads processes each part, and a second kernel merges the results. The split follows from the
 * shapes alone.
 *
 * A row of a head (D values) is read by a group of lanes, 16 bytes each. A group has an online
 * softmax of its own (Milakov and Gimelshein 2018) and processes several keys at a time: a lane
 * loads 4 x 16 bytes of keys and as much of values before it uses any, a block 16 KB. Groups and
 * warps are merged once, at the end of a part. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/flat.h"

enum {
    WARPS = 4,
    THREADS = WARPS * WARP,
    LOADS = 4,  /* loads of 16 bytes that a lane has in flight for keys, and for values */
    BLOCKS = 4, /* minimum of blocks on a multiprocessor; without it the compiler saves registers by
                   delaying loads until their values are needed */
    ROUND_BYTES = THREADS * LOADS * 16,
    PARTS_MAX = 64 /* parts of a head of one query; longer sequences have longer parts, and more
                      queries fewer */
};

/* Scores are scaled so that weights are powers of 2. */
struct decode_problem {
    const void *q, *cache;
    const struct decode_keys *keys; /* [N] */
    float2 *states; /* [N, H, parts]: the largest score, the sum of weights relative to it */
    float *sums;    /* [N, H, parts, D]: weights times values */
    int64_t q_stride, stride, key_stride; /* columns of q; of the cache; rows between own keys */
    int heads, kv_heads, width, parts, part_keys;
    int first_part;       /* the part of the first key that is read */
    int window;           /* number of keys that a query reads at most, or 0 */
    float inner;          /* as in struct attention_score */
    float exponent_scale; /* scores to powers of 2 */
};

/* Layout of rows of up to W values over lanes. */
template <typename T, int W> struct row_layout {
    enum {
        N = 16 / sizeof(T),                       /* values of a load */
        LANES = W / N < WARP ? W / N : (int)WARP, /* lanes of a group */
        CHUNKS = W / N / LANES,                   /* chunks of a row that a lane has */
        STEPS = LOADS / CHUNKS,                   /* keys of a group at a time */
        GROUPS = WARP / LANES,                    /* groups of a warp */
        KEYS = ROUND_BYTES / (W * (int)sizeof(T)) /* keys of a block at a time */
    };
};

/* Shift that exponents are relative to. If all scores are -inf, it is 0, so that all weights are
 * 0. */
static __device__ __forceinline__ float base_for(float shift) {
    return shift == -INFINITY ? 0 : shift;
}

/* Loads the lane's chunks of a row that has `left` values from the first of them on; 0 beyond.
 * WHOLE: rows consist of aligned chunks. */
template <typename T, int W, bool WHOLE>
static __device__ __forceinline__ void
row_read(struct chunk<T, row_layout<T, W>::N> row[row_layout<T, W>::CHUNKS], const T *from,
         int left) {
    constexpr int N = row_layout<T, W>::N, STRIDE = row_layout<T, W>::LANES * N;
#pragma unroll
    for (int c = 0; c < row_layout<T, W>::CHUNKS; c++) {
        T at[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            bool inside = !WHOLE && c * STRIDE + i < left;
            at[i] = inside ? from[c * STRIDE + i] : narrow<T>(0.0f);
        }
        memcpy(&row[c].bits, (const void *)at, sizeof at);
        if (WHOLE && c * STRIDE < left) row[c] = load_chunk<N>(from + c * STRIDE);
    }
}

/* State of the online softmax of a group of lanes; each lane has its own columns of out. */
template <int CHUNKS, int N> struct decode_state { float shift, sum, out[CHUNKS][N]; };

/* Scores of the keys, the same in all lanes of the group; -inf for keys that do not exist. */
template <typename T, int W>
static __device__ __forceinline__ void
scores(float s[row_layout<T, W>::STEPS],
       const struct chunk<T, row_layout<T, W>::N> k[][row_layout<T, W>::CHUNKS],
       const float q[][row_layout<T, W>::N], const bool *exists,
       const struct decode_problem *problem) {
    constexpr int N = row_layout<T, W>::N;
#pragma unroll
    for (int i = 0; i < row_layout<T, W>::STEPS; i++) {
        s[i] = 0;
#pragma unroll
        for (int c = 0; c < row_layout<T, W>::CHUNKS; c++) {
            float values[N];
            unpack(values, &k[i][c]);
#pragma unroll
            for (int e = 0; e < N; e++) s[i] += q[c][e] * values[e];
        }
    }
#pragma unroll
    for (int offset = row_layout<T, W>::LANES / 2; offset > 0; offset /= 2)
#pragma unroll
        for (int i = 0; i < row_layout<T, W>::STEPS; i++)
            s[i] += __shfl_xor_sync(0xffffffffu, s[i], offset);
#pragma unroll
    for (int i = 0; i < row_layout<T, W>::STEPS; i++) {
        if (problem->inner != 0) s[i] = tanhf(s[i] * problem->inner);
        s[i] = exists[i] ? s[i] * problem->exponent_scale : -INFINITY;
    }
}

/* Turns scores into weights and adds the weighted values. */
template <typename T, int W>
static __device__ __forceinline__ void
attend(struct decode_state<row_layout<T, W>::CHUNKS, row_layout<T, W>::N> *state,
       const float s[row_layout<T, W>::STEPS],
       const struct chunk<T, row_layout<T, W>::N> v[][row_layout<T, W>::CHUNKS]) {
    constexpr int N = row_layout<T, W>::N;
    float shift = state->shift;
#pragma unroll
    for (int i = 0; i < row_layout<T, W>::STEPS; i++) shift = fmaxf(shift, s[i]);
    float base = base_for(shift), factor = exp2f(state->shift - base);
    state->shift = shift;
    state->sum *= factor;
#pragma unroll
    for (int c = 0; c < row_layout<T, W>::CHUNKS; c++)
#pragma unroll
        for (int e = 0; e < N; e++) state->out[c][e] *= factor;
#pragma unroll
    for (int i = 0; i < row_layout<T, W>::STEPS; i++) {
        float weight = exp2f(s[i] - base);
        state->sum += weight;
#pragma unroll
        for (int c = 0; c < row_layout<T, W>::CHUNKS; c++) {
            float values[N];
            unpack(values, &v[i][c]);
#pragma unroll
            for (int e = 0; e < N; e++) state->out[c][e] += weight * values[e];
        }
    }
}

/* Merges the groups of a warp; each group gets the merged state. */
template <int GROUPS, int CHUNKS, int N>
static __device__ __forceinline__ void merge_groups(struct decode_state<CHUNKS, N> *state) {
    const unsigned all = 0xffffffffu;
    float shift = state->shift;
#pragma unroll
    for (int offset = WARP / GROUPS; offset < WARP; offset *= 2)
        shift = fmaxf(shift, __shfl_xor_sync(all, shift, offset));
    float factor = exp2f(state->shift - base_for(shift));
    state->shift = shift;
    state->sum *= factor;
#pragma unroll
    for (int offset = WARP / GROUPS; offset < WARP; offset *= 2)
        state->sum += __shfl_xor_sync(all, state->sum, offset);
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
#pragma unroll
        for (int e = 0; e < N; e++) {
            state->out[c][e] *= factor;
#pragma unroll
            for (int offset = WARP / GROUPS; offset < WARP; offset *= 2)
                state->out[c][e] += __shfl_xor_sync(all, state->out[c][e], offset);
        }
}

/* Merges the warps of the block and stores the result as partial `blockIdx.x`. */
template <typename T, int W>
static __device__ __forceinline__ void
store_partial(const struct decode_problem *problem,
              const struct decode_state<row_layout<T, W>::CHUNKS, row_layout<T, W>::N> *state) {
    constexpr int N = row_layout<T, W>::N, LANES = row_layout<T, W>::LANES;
    __shared__ float2 warp_state[WARPS];
    __shared__ float warp_out[WARPS][W];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    if (lane == 0) warp_state[warp] = make_float2(state->shift, state->sum);
    if (lane < LANES) {
#pragma unroll
        for (int c = 0; c < row_layout<T, W>::CHUNKS; c++)
#pragma unroll
            for (int e = 0; e < N; e++)
                warp_out[warp][(c * LANES + lane) * N + e] = state->out[c][e];
    }
    __syncthreads();
    float shift = -INFINITY, sum = 0, factor[WARPS];
#pragma unroll
    for (int w = 0; w < WARPS; w++) shift = fmaxf(shift, warp_state[w].x);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        factor[w] = exp2f(warp_state[w].x - base_for(shift));
        sum += factor[w] * warp_state[w].y;
    }
    if (threadIdx.x == 0) problem->states[blockIdx.x] = make_float2(shift, sum);
    for (int d = (int)threadIdx.x; d < problem->width; d += THREADS) {
        float out = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) out += factor[w] * warp_out[w][d];
        problem->sums[(int64_t)blockIdx.x * problem->width + d] = out;
    }
}

template <typename T, int W, bool WHOLE>
static __global__ void __launch_bounds__(THREADS, BLOCKS)
    attention_decode_part_kernel(const struct decode_problem problem) {
    typedef struct row_layout<T, W> L;
    typedef struct chunk<T, L::N> rows[L::STEPS][L::CHUNKS];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int column = lane % L::LANES * L::N, left = problem.width - column;
    int head = (int)blockIdx.x / problem.parts, part = (int)blockIdx.x % problem.parts;
    int query_row = head / problem.heads, group = problem.heads / problem.kv_heads;
    int64_t values = (int64_t)problem.kv_heads * problem.width; /* columns from keys to values */
    const struct decode_keys own = problem.keys[query_row];
    const T *base = (const T *)problem.q + query_row * problem.q_stride +
                    head % problem.heads * problem.width + column;
    const T *keys = (const T *)problem.cache + problem.stride - 2 * values +
                    head % problem.heads / group * problem.width + column;
    struct decode_state<L::CHUNKS, L::N> state = {
        - INFINITY, 0, {
            { 0 }
        }
    };
    struct chunk<T, L::N> query[L::CHUNKS];
    float q[L::CHUNKS][L::N];
    row_read<T, W, WHOLE>(query, base, left);
#pragma unroll
    for (int c = 0; c < L::CHUNKS; c++) unpack(q[c], &query[c]);
    int begin = (problem.first_part + part) * problem.part_keys, end = begin + problem.part_keys;
    if (end > decode_key_count(&own)) end = (int)decode_key_count(&own);
    int first_key = (int)decode_first_key(&own, problem.window);
    for (int first = begin; first < end; first += L::KEYS) {
        rows k, v;
        bool exists[L::STEPS];
        float s[L::STEPS];
#pragma unroll
        for (int i = 0; i < L::STEPS; i++) {
            int key = first + (i * WARPS + warp) * L::GROUPS + lane / L::LANES;
            const T *row = keys + decode_key_row(&own, key, problem.key_stride) * problem.stride;
            exists[i] = key < end && key >= first_key;
            row_read<T, W, WHOLE>(k[i], row, exists[i] ? left : 0);
            row_read<T, W, WHOLE>(v[i], row + values, exists[i] ? left : 0);
        }
        scores<T, W>(s, k, q, exists, &problem);
        attend<T, W>(&state, s, v);
    }
    merge_groups<L::GROUPS>(&state);
    store_partial<T, W>(&problem, &state);
}

/* Merges the parts of a head in order; a block for a head, a thread for a column. */
template <typename T>
static __global__ void __launch_bounds__(ATTENTION_WIDTH_MAX)
    attention_decode_merge_kernel(T *out, const struct decode_problem problem) {
    __shared__ float2 states[PARTS_MAX];
    int64_t first = (int64_t)blockIdx.x * problem.parts;
    int d = (int)threadIdx.x;
    if (d < problem.parts) states[d] = problem.states[first + d];
    __syncthreads();
    if (d >= problem.width) return;
    const float *sums = problem.sums + first * problem.width + d;
    float shift = -INFINITY, sum = 0, total = 0;
    for (int i = 0; i < problem.parts; i++) shift = fmaxf(shift, states[i].x);
    float base = base_for(shift);
#pragma unroll 8
    for (int i = 0; i < problem.parts; i++) {
        float factor = exp2f(states[i].x - base);
        sum += factor * states[i].y;
        total += factor * sums[(int64_t)i * problem.width];
    }
    out[(int64_t)blockIdx.x * problem.width + d] = narrow<T>(total / sum);
}

/* ---- on the host */

static int padded_width(int64_t width) {
    return width <= 32 ? 32 : width <= 64 ? 64 : width <= 128 ? 128 : ATTENTION_WIDTH_MAX;
}

/* A sequence of the shape is a query, with as many rows as it may have keys. */
static struct attention_shape decode_shape(const struct attention_decode_args *args) {
    int64_t queries = tensor_rows(args->out), width = tensor_columns(args->out) / args->heads;
    assert(args->heads % args->kv_heads == 0 && tensor_rows(args->q) == queries);
    assert(tensor_columns(args->out) == args->heads * width);
    assert(tensor_columns(args->q) >= args->heads * width);
    assert(tensor_columns(args->cache) >= 2 * args->kv_heads * width);
    assert(args->q->dtype == args->cache->dtype);
    return {queries, args->keys_max, args->heads, args->kv_heads, width};
}

/* Keys that a block processes at a time. */
static int64_t round_keys(const struct attention_shape *shape, enum dtype dtype) {
    return ROUND_BYTES / (padded_width(shape->width) * (int64_t)dtype_bytes(dtype));
}

/* Keys of a part. They depend on keys_max, so that later calls keep the boundaries of parts. */
static int64_t part_keys(const struct attention_shape *shape, enum dtype dtype) {
    int64_t round = round_keys(shape, dtype);
    int64_t parts = shape->batch < PARTS_MAX ? PARTS_MAX / shape->batch : 1;
    return round * blocks_of(blocks_of(shape->sequence, round), parts);
}

/* The bound on the parts of all queries is that of any number of queries up to N: 32 queries in two
 * parts have more of them than 48 queries in one. */
size_t cuda_attention_decode_scratch(struct backend *be, const struct attention_decode_args *args) {
    struct attention_shape shape = decode_shape(args);
    if (attention_is_void(be, &shape, "attention_decode")) return 0;
    int64_t round = round_keys(&shape, args->cache->dtype);
    int64_t parts = shape.batch * blocks_of(shape.sequence, round);
    if (parts > PARTS_MAX) parts = shape.batch > PARTS_MAX ? shape.batch : (int64_t)PARTS_MAX;
    return (size_t)(parts * shape.heads) * (sizeof(float2) + (size_t)shape.width * sizeof(float));
}

template <typename T, int W>
static void part_launch(struct backend *be, const struct decode_problem *problem, unsigned blocks,
                        bool whole) {
    LAUNCH((whole ? attention_decode_part_kernel<T, W, true>
                  : attention_decode_part_kernel<T, W, false>),
           blocks, THREADS, 0, cuda_state(be)->compute, *problem);
}

template <typename T>
static void parts_launch(struct backend *be, const struct decode_problem *problem,
                         unsigned blocks) {
    int at_once = 16 / (int)sizeof(T);
    bool whole = aligned_to(problem->q, 16) && aligned_to(problem->cache, 16) &&
                 problem->width % at_once == 0 && problem->q_stride % at_once == 0 &&
                 problem->stride % at_once == 0;
    switch (padded_width(problem->width)) {
    case 32: part_launch<T, 32>(be, problem, blocks, whole); break;
    case 64: part_launch<T, 64>(be, problem, blocks, whole); break;
    case 128: part_launch<T, 128>(be, problem, blocks, whole); break;
    default: part_launch<T, ATTENTION_WIDTH_MAX>(be, problem, blocks, whole);
    }
}

void cuda_attention_decode(struct backend *be, const struct attention_decode_args *args) {
    struct attention_shape shape = decode_shape(args);
    assert(args->keys_from >= 0 && args->keys_from < args->keys_to);
    assert(args->keys_to <= args->keys_max);
    if (attention_is_void(be, &shape, "attention_decode")) return;
    struct decode_problem problem;
    int64_t all_heads = shape.batch * shape.heads;
    int64_t keys_of_part = part_keys(&shape, args->cache->dtype);
    int64_t first_part = args->keys_from / keys_of_part;
    int64_t parts = blocks_of(args->keys_to, keys_of_part) - first_part;
    problem.q = args->q->data;
    problem.cache = args->cache->data;
    problem.q_stride = tensor_columns(args->q);
    problem.states = (float2 *)backend_workspace(be, cuda_attention_decode_scratch(be, args));
    problem.sums = (float *)(problem.states + all_heads * parts);
    problem.keys = args->keys;
    problem.stride = tensor_columns(args->cache);
    problem.key_stride = args->stride;
    problem.heads = (int)shape.heads;
    problem.kv_heads = (int)shape.kv_heads;
    problem.width = (int)shape.width;
    problem.parts = (int)parts;
    problem.part_keys = (int)keys_of_part;
    problem.first_part = (int)first_part;
    problem.window = (int)args->window;
    struct attention_score score = attention_score(args->scale, args->softcap);
    problem.inner = score.inner;
    problem.exponent_scale = (float)(M_LOG2E / score.divisor);
    STORAGE_SWITCH(args->cache->dtype, T,
                   parts_launch<T>(be, &problem, (unsigned)(all_heads * parts)));
    unsigned threads = shape.width <= PARTS_MAX ? PARTS_MAX : padded_width(shape.width);
    STORAGE_SWITCH(args->out->dtype, T,
                   LAUNCH(attention_decode_merge_kernel<T>, (unsigned)all_heads, threads, 0,
                          cuda_state(be)->compute, (T *)args->out->data, problem));
    cuda_launched(be, "attention_decode");
}
