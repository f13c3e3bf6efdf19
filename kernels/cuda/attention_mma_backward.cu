/* The gradient of attention on tensor cores with mma.sync: see attention_backward.h.
 *
 * The limit of mma.sync is the rate of ldmatrix from shared memory: a fragment of 512 bytes takes 4
 * cycles of the multiprocessor, and an mma takes 8 cycles (sm_80) or some 6 (sm_90) of one of its
 * four tensor cores. So a warp has 32 keys, and K and V stay in registers as A fragments: 1
 * ldmatrix for 4 mma. Scores are computed with keys down, so that P and dS leave the accumulators
 * as the A fragments of the next products.
 *
 * With D = 64 a warp sums dK (64 registers) and dV (64) and holds K and V (32 each). With D = 128
 * that would be twice as much. So a pair of warps shares 32 keys: the first holds K and computes P
 * and dV, the second holds V and computes dS and dK. P goes from one to the other in fp32 through
 * shared memory. The first works on the next scores while the second uses these.
 *
 * dQ needs dS of all keys of the block, so dS passes through shared memory, rounded to 16 bits. dQ
 * of a tile is computed a step later, right after the barrier of the next tile: then one barrier
 * for each tile is enough, with two stages and two tiles of dS. Each warp has 32 queries times 16
 * columns of dQ. It starts its accumulators from the sum so far and stores them again as they are,
 * 16 bytes a lane. One semaphore holds for a warp's two chunks of 64 queries.
 *
 * 32 queries a tile need 48.6 KB of shared memory with D = 64: two blocks fit the 100 KB of sm_86,
 * sm_89 and sm_120. With D = 128, one block of 97 KB does. */
#include "kernels/cuda/attention_mma_backward.h"

/* ---- dQ */

/* A warp has CHUNK_COLUMNS columns of each tile of dQ. The sum so far is kept in the order of its
 * accumulators: four values of each lane side by side. */
struct chunk {
    float at[2][2][4]; /* [band of queries][8 columns] as an accumulator has them */
};

/* Fragments of dS and K for 16 keys. */
struct operands {
    uint32_t scores[2][4], keys[4];
};
template <int D>
static __device__ __forceinline__ void load_operands(struct operands *of, shared_pointer scores,
                                                     shared_pointer keys, int key) {
    ldmatrix_x4_trans(of->scores[0], scores + key * TILE_QUERIES * 2);
    ldmatrix_x4_trans(of->keys, keys + key * D * 2);
    ldmatrix_x4_trans(of->scores[1], column_from(scores, 16) + key * TILE_QUERIES * 2);
}

/* Adds dS K of 32 keys from `key` on, whose first operands are in now[0]; loads those that follow,
 * unless LAST. */
template <typename T, int D, bool LAST>
static __device__ __forceinline__ void multiply_32(struct chunk *dq, struct operands now[2],
                                                   shared_pointer scores, shared_pointer keys,
                                                   int key) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (half == 0 || !LAST)
            load_operands<D>(&now[1 - half], scores, keys, key + (half + 1) * 16);
#pragma unroll
        for (int i = 0; i < 4; i++)
            multiply_add(dq->at[i / 2][i % 2], now[half].scores[i / 2], now[half].keys + i % 2 * 2,
                         T());
    }
}

/* Adds dS K: `end` keys of the block, a multiple of 32. */
template <typename T, int D>
static __device__ __forceinline__ void multiply_scores(struct chunk *dq, const T *scores,
                                                       const T *keys, int end) {
    int thread = reread_thread_index(), lane = thread % WARP, column = thread / WARP * 2;
    int row = lane / 16 * 8 + lane % 8;
    shared_pointer a = shared_pointer_to(scores + score_offset(row, lane / 8 % 2));
    shared_pointer b = shared_pointer_to(keys + tile_offset<D>(lane % 16, column + lane / 16));
    struct operands now[2];
    load_operands<D>(&now[0], a, b, 0);
    if (end == BLOCK_KEYS) {
#pragma unroll
        for (int key = 0; key < BLOCK_KEYS - 32; key += 32)
            multiply_32<T, D, false>(dq, now, a, b, key);
        multiply_32<T, D, true>(dq, now, a, b, BLOCK_KEYS - 32);
        return;
    }
#pragma unroll 1
    for (int key = 0; key < end; key += 32) multiply_32<T, D, false>(dq, now, a, b, key);
}

/* Rounds dQ and stores it: its last part has been added. to: the tile's first row, at the chunk's
 * first column. Two lanes exchange halves, so that a row's 32 bytes are stored at once. */
template <typename T>
static __device__ __forceinline__ void store_queries(T *to, int stride, int valid,
                                                     const struct chunk *dq, float scale,
                                                     float *column_sums) {
    int lane = reread_thread_index() % WARP;
    bool odd = lane % 2;
#pragma unroll
    for (int band = 0; band < 2; band++) {
        float sums[4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = band * 16 + half * 8 + lane / 4;
            uint32_t bits[2];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const float *pair = dq->at[band][n] + half * 2;
                bits[n] = rounded_pair(pair[0] * scale, pair[1] * scale, T());
                sums[n * 2] += widen(narrow<T>(pair[0] * scale));
                sums[n * 2 + 1] += widen(narrow<T>(pair[1] * scale));
            }
            uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? bits[0] : bits[1], 1);
            uint2 both = {odd ? other : bits[0], odd ? bits[1] : other};
            if (row < valid)
                *(uint2 *)(to + (int64_t)row * stride + lane % 2 * 8 + lane % 4 / 2 * 4) = both;
        }
        if (!column_sums) continue;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            for (int other = 4; other < WARP; other *= 2)
                sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], other);
            if (lane < 4)
                column_sums[(int64_t)band * stride + i / 2 * 8 + lane * 2 + i % 2] = sums[i];
        }
    }
}

/* Chunk of this warp in the tile before the current one. */
struct place {
    int batch, head, at, tile; /* head: index in H; at: first query; tile: of the block's keys */
};
/* True if keys and queries of the chunk meet on the diagonal. */
static __device__ __forceinline__ bool on_diagonal(struct place place) {
    return place.at < (place.tile + 1) * BLOCK_KEYS;
}

/* The lane's part of the sum so far. */
template <int D>
static __device__ __forceinline__ float4 *sum_at(const struct backward &b, struct place place) {
    int thread = reread_thread_index();
    int64_t row = ((int64_t)place.batch * b.heads + place.head) * b.tiles * BLOCK_KEYS + place.at;
    return (float4 *)(b.dq + (row * D + thread / WARP * TILE_QUERIES * CHUNK_COLUMNS)) +
           thread % WARP;
}
/* Index of the semaphore of the warp's chunks of 64 queries. */
static __device__ __forceinline__ int semaphore_at(const struct backward &b, struct place place) {
    const int share = SEMAPHORES * VALUE_ROWS / BLOCK_KEYS;
    return (place.batch * b.heads + place.head) * b.tiles * SEMAPHORES +
           place.at / VALUE_ROWS * share + reread_thread_index() / WARP;
}

/* Waits for the chunk's turn in the first of the two tiles that a semaphore holds for. Returns true
 * if the sum has begun. Notes which semaphore to pass on after the second tile. */
static __device__ __forceinline__ bool await_turn(const struct backward &b, struct kept *kept,
                                                  struct place place) {
    int thread = reread_thread_index(), semaphore = semaphore_at(b, place);
    volatile struct turn *turn = &kept->turns[thread / WARP];
    bool second = place.at % VALUE_ROWS == 0, begun = turn->begun;
    if (!second) begun = semaphore_begun(b.semaphores + semaphore, place.tile);
    if (thread % WARP == 0) {
        turn->begun = begun;
        turn->pass = second && !on_diagonal(place) ? semaphore : -1;
    }
    __syncwarp();
    return begun;
}

/* Chunk of the tile before the current one. */
static __device__ __forceinline__ struct place place_before(const struct kept *kept, int stage) {
    struct held of = reload_held(kept);
    struct streamed before = previous_of(reload_tile(kept, stage), reload_readers(kept));
    struct place place = {of.batch, of.head * reload_readers(kept) + before.head, before.at,
                          of.tile};
    return place;
}

/* Adds the block's part of dQ of the tile before the current one. */
template <typename T, int D>
static __device__ __forceinline__ void add_queries(const struct backward &b, struct kept *kept,
                                                   const T *scores, const T *keys, int stage) {
    struct chunk dq = {};
    struct place place = place_before(kept, stage);
    float4 *sum = sum_at<D>(b, place);
    if (await_turn(b, kept, place))
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float4 four = sum[i * WARP];
            float *to = dq.at[i / 2][i % 2];
            to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
        }
    bool diagonal = on_diagonal(place);
    multiply_scores<T, D>(&dq, scores, keys,
                          diagonal ? place.at % BLOCK_KEYS + TILE_QUERIES : BLOCK_KEYS);
    if (!diagonal) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *four = dq.at[i / 2][i % 2];
            sum[i * WARP] = make_float4(four[0], four[1], four[2], four[3]);
        }
        return;
    }
    place = place_before(kept, stage);
    int column = place.head * D + reread_thread_index() / WARP * CHUNK_COLUMNS;
    int64_t group =
        (int64_t)(place.batch * b.tiles + place.tile) * SUM_WARPS + place.at % BLOCK_KEYS / 16;
    store_queries((T *)b.dqkv + query_offset<D>(b, place.batch, 0, place.at) + column, b.stride,
                  b.sequence - place.at, &dq, b.scale,
                  b.sums ? b.sums + group * b.stride + column : NULL);
}

/* Passes on the semaphore of the warp's chunk, if it was the second of its two. Its stores are a
 * step old, so that no fence waits for them. */
static __device__ __forceinline__ void pass_on(const struct backward &b, const struct kept *kept) {
    const volatile struct turn *turn = &kept->turns[reread_thread_index() / WARP];
    int semaphore = turn->pass;
    if (semaphore >= 0) semaphore_pass(b.semaphores + semaphore, kept->of.tile);
}

/* Begins a step: fetches the next tile and adds dQ of the tile before. Returns false if that was
 * the last one. */
template <typename T, int D>
static __device__ __forceinline__ bool advance(const struct backward &b, unsigned char *shared,
                                               int stage) {
    typedef struct layout<D> layout;
    struct kept *kept = kept_in<D>(shared);
    struct held of = reload_held(kept);
    struct streamed now = reload_tile(kept, stage);
    int last = reload_last(kept), readers = reload_readers(kept), first = of.tile * BLOCK_KEYS;
    struct streamed next = next_of(now, readers);
    bool started = now.head > 0 || now.at < last, more = now.at >= first;
    if (threadIdx.x == 0) kept->now[stage ^ 1] = next;
    if (next.at >= first)
        fetch<T, D>(shared, stage ^ 1, b, of.batch, of.head * readers + next.head, next.at);
    cp_async_commit();
    const unsigned char *scores = shared + layout::SCORES_AT + (stage ^ 1) * layout::SCORES;
    if (started) add_queries<T, D>(b, kept, (const T *)scores, (const T *)shared, stage);
    return more;
}

/* ---- dK and dV */

/* A step: STEP queries of a tile. */
struct step {
    int index;                  /* 4 stage + step in the tile */
    shared_pointer along, down; /* the queries' rows for the lane, see stream_lanes */
};

/* Values of the first query that the lane reads. */
template <int D>
static __device__ __forceinline__ const float *values_of(const unsigned char *shared, int index) {
    static_assert(layout<D>::VALUES == 4 * STEP * 4, "a step has STEP values of each");
    return (const float *)(shared + layout<D>::VALUES_AT) + index * STEP +
           reread_thread_index() % 4 * 2;
}

template <int D> struct fragments { uint32_t of[layout<D>::OPERANDS][BANDS][D / 16][4]; };
template <int D> struct key_sums { float of[layout<D>::OPERANDS][BANDS][D / 8][4]; };

/* Distance from the warp's first key to the first query of step `index`. It is reloaded for each
 * step. */
template <int D>
static __device__ __forceinline__ int ahead_of(const unsigned char *shared, int index) {
    const struct kept *kept = kept_in<D>(shared);
    return reload_tile(kept, index / 4).at + index % 4 * STEP -
           reload_held(kept).tile * BLOCK_KEYS - key_warp() * WARP_KEYS;
}

/* P from the scores, in place. */
template <int D, bool LIMITED>
static __device__ __forceinline__ void exponentials(float s[BANDS][2][4], const struct step *at,
                                                    int ahead, const struct backward &b,
                                                    const unsigned char *shared) {
    const float *x = values_of<D>(shared, at->index);
    if (ahead < WARP_KEYS - 1) mask(s, ahead);
    if (LIMITED) mask_before(s, b, kept_in<D>(shared), ahead);
#pragma unroll
    for (int i = 0; i < BANDS * 8; i++) {
        float *p = &s[i / 8][i / 4 % 2][i % 4];
        *p = exp2_approx(*p * b.factor + x[i / 4 % 2 * 8 + i % 2]);
    }
}

/* dS from P and dP, in place of dP. */
template <int D>
static __device__ __forceinline__ void
score_gradients(float dp[BANDS][2][4], const float p[BANDS][2][4], const struct step *at,
                const unsigned char *shared) {
    const float *delta = values_of<D>(shared, at->index) + TILE_QUERIES;
#pragma unroll
    for (int i = 0; i < BANDS * 8; i++) {
        int band = i / 8, n = i / 4 % 2, j = i % 4;
        dp[band][n][j] = p[band][n][j] * (dp[band][n][j] - delta[n * 8 + j % 2]);
    }
}

/* True if dP is multiplied before the exponentials, which then overlap with it. With the code for
 * Hopper, registers would be spilled. */
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
static constexpr bool EARLY_PRODUCT = false;
#else
static constexpr bool EARLY_PRODUCT = true;
#endif

/* dv += P' dO and dk += dS' Q for STEP queries. */
template <typename T, int D, bool LIMITED>
static __device__ __forceinline__ void
step_of_both(struct key_sums<D> *sums, const struct fragments<D> *held, const struct step *at,
             const struct backward &b, unsigned char *shared) {
    const int second = layout<D>::SECOND;
    float p[BANDS][2][4], ds[BANDS][2][4];
    uint32_t a[BANDS][4];
    int ahead = ahead_of<D>(shared, at->index);
    product<T, D>(p, held->of[0], at->along);
    if (EARLY_PRODUCT) product<T, D>(ds, held->of[1], at->along + second);
    exponentials<D, LIMITED>(p, at, ahead, b, shared);
    if (!EARLY_PRODUCT) product<T, D>(ds, held->of[1], at->along + second);
    rounded<T>(a, p);
    accumulate<T, D>(sums->of[1], a, at->down + second);
    score_gradients<D>(ds, p, at, shared);
    rounded<T>(a, ds);
    store_scores<T, D>(shared, a, at->index);
    accumulate<T, D>(sums->of[0], a, at->down);
}

/* The same by two warps: the first computes P and dV, the second dS and dK. */
template <typename T, int D, bool LIMITED>
static __device__ __forceinline__ void
step_of_one(struct key_sums<D> *sums, const struct fragments<D> *held, const struct step *at,
            const struct backward &b, unsigned char *shared) {
    const bool second = is_second<D>();
    const int offset = layout<D>::SECOND;
    float s[BANDS][2][4];
    uint32_t a[BANDS][4];
    float4 *exchange = (float4 *)(shared + layout<D>::EXCHANGE_AT) +
                       (at->index % 2 * KEY_WARPS + key_warp()) * BANDS * 2 * WARP +
                       reread_thread_index() % WARP;
    int ahead = ahead_of<D>(shared, at->index);
    product<T, D>(s, held->of[0], second ? at->along + offset : at->along);
    if (!second) {
        exponentials<D, LIMITED>(s, at, ahead, b, shared);
#pragma unroll
        for (int i = 0; i < BANDS * 2; i++) {
            const float *p = s[i / 2][i % 2];
            exchange[i * WARP] = make_float4(p[0], p[1], p[2], p[3]);
        }
    }
    named_barrier(1 + key_warp(), 2 * WARP);
    if (second) {
        float p[BANDS][2][4];
#pragma unroll
        for (int i = 0; i < BANDS * 2; i++) {
            float4 four = exchange[i * WARP];
            float *to = p[i / 2][i % 2];
            to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
        }
        score_gradients<D>(s, p, at, shared);
    }
    rounded<T>(a, s);
    if (second) store_scores<T, D>(shared, a, at->index);
    accumulate<T, D>(sums->of[0], a, second ? at->down : at->down + offset);
}

/* Processes the tile of stage `stage`, unless all of its queries precede the warp's keys. */
template <typename T, int D, bool LIMITED>
static __device__ __forceinline__ void
multiply_tile(struct key_sums<D> *sums, const struct fragments<D> *held, int stage,
              const struct backward &b, unsigned char *shared) {
    if (ahead_of<D>(shared, 4 * stage) < 0) return;
    struct stream_lanes lanes = stream_lanes<D>((const T *)(shared + layout<D>::STAGES_AT));
    lanes.along += stage * layout<D>::STAGE, lanes.down += stage * layout<D>::STAGE;
#pragma unroll
    for (int i = 0; i < TILE_QUERIES / STEP; i++) {
        int offset = i * STEP * D * 2;
        struct step at = {4 * stage + i, lanes.along + offset, lanes.down + offset};
        if (layout<D>::ROLES == 1) step_of_both<T, D, LIMITED>(sums, held, &at, b, shared);
        else step_of_one<T, D, LIMITED>(sums, held, &at, b, shared);
    }
}

/* ---- the kernel */

/* Stores dK and dV, through shared memory that nobody uses any more. */
template <typename T, int D>
static __device__ __forceinline__ void finish(const struct backward &b, const struct kept *kept,
                                              T *shared, const struct key_sums<D> *sums) {
    struct held of = reload_held(kept);
    int columns = reload_readers(kept) * D; /* in dQ */
    int warp = reread_thread_index() / WARP, row = warp % KEY_WARPS * WARP_KEYS;
    int first = of.tile * BLOCK_KEYS, valid = b.sequence - first;
    int values = b.kv_heads * D; /* columns from keys to values */
    T *to = (T *)b.dqkv + key_offset<D>(b, of, first + row),
      *staging = shared + warp * WARP_KEYS * D;
    float *rows = b.sums, *column_sums = NULL; /* rows of sums of the block, of the warp's keys */
    if (b.sums) {
        rows += (int64_t)(of.batch * b.tiles + of.tile) * SUM_WARPS * b.stride;
        column_sums = rows + (int64_t)row / 16 * b.stride + b.out_stride + of.head * D;
    }
    if (layout<D>::ROLES == 1 || is_second<D>())
        store_sums<T, D>(to, b.stride, valid - row, staging, sums->of[0], b.scale, column_sums);
    if (!is_second<D>())
        store_sums<T, D>(to + values, b.stride, valid - row, staging,
                         sums->of[layout<D>::OPERANDS - 1], 1.0f,
                         column_sums ? column_sums + values : NULL);
    if (!b.sums) return;
    /* Queries after the last tile have no dQ, but sums. */
    for (int group = (valid + VALUE_ROWS - 1) / VALUE_ROWS * (VALUE_ROWS / 16); group < SUM_WARPS;
         group++)
        for (int i = (int)threadIdx.x; i < columns; i += layout<D>::THREADS)
            rows[(int64_t)group * b.stride + of.head * columns + i] = 0;
}

template <typename T, int D, bool LIMITED>
static __global__ void __launch_bounds__(layout<D>::THREADS, layout<D>::BLOCKS)
    gradients_kernel(const struct backward b) {
    typedef struct layout<D> layout;
    DYNAMIC_SHARED(unsigned char, shared);
    struct kept *kept = kept_in<D>(shared);
    T *keys = (T *)shared;
    T *scores = (T *)(shared + layout::SCORES_AT);
    struct held of = take_work(b, &kept->number);
    int first = of.tile * BLOCK_KEYS, end = b.sequence;
    if (LIMITED)
        end = last_reader(b.first_keys + (int64_t)of.batch * b.sequence, first, end,
                          first + BLOCK_KEYS);
    int last = (end - 1) / VALUE_ROWS * VALUE_ROWS + VALUE_ROWS - TILE_QUERIES;
    struct streamed start = {0, last};
    if (threadIdx.x == 0) {
        kept->of = of, kept->last = last, kept->readers = b.heads / b.kv_heads;
        kept->now[0] = start;
    }
    if (threadIdx.x < layout::WARPS) kept->turns[threadIdx.x].pass = -1;

    const T *k_rows = (const T *)b.qkv + key_offset<D>(b, of, first);
    load_tile<T, D, BLOCK_KEYS, layout::THREADS>(keys, k_rows, b.stride, b.sequence - first);
    load_tile<T, D, BLOCK_KEYS, layout::THREADS>(scores, k_rows + b.kv_heads * D, b.stride,
                                                 b.sequence - first);
    fetch<T, D>(shared, 0, b, of.batch, of.head * (b.heads / b.kv_heads), last);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    struct fragments<D> held;
#pragma unroll
    for (int i = 0; i < layout::OPERANDS; i++)
        hold<T, D>(held.of[i], (i || is_second<D>() ? scores : keys) + key_warp() * WARP_KEYS * D);

    struct key_sums<D> sums = {};
    for (int stage = 0;; stage ^= 1) {
        cp_async_wait<0>(); /* the step's tile */
        __syncthreads();    /* and dS of the tile before */
        if (!advance<T, D>(b, shared, stage)) break;
        multiply_tile<T, D, LIMITED>(&sums, &held, stage, b, shared);
        pass_on(b, kept);
    }
    __syncthreads();
    finish<T, D>(b, kept, (T *)shared, &sums);
}

template <typename T, int D, bool LIMITED>
static void launch_with(struct backend *be, const struct attention_backward_args *args,
                        const struct attention_shape *shape) {
    const void *kernel = (const void *)gradients_kernel<T, D, LIMITED>;
    if (!cuda_shared(be, kernel, layout<D>::BYTES, "attention_backward")) return;
    struct backward b = attention_backward_begin(be, args, shape);
    unsigned blocks = (unsigned)(b.tiles * b.batch * b.kv_heads);
    LAUNCH((gradients_kernel<T, D, LIMITED>), blocks, layout<D>::THREADS, layout<D>::BYTES,
           cuda_state(be)->compute, b);
    attention_backward_end(be, &b, args, shape);
}

template <typename T, int D>
static void launch(struct backend *be, const struct attention_backward_args *args,
                   const struct attention_shape *shape) {
    if (args->first_keys) launch_with<T, D, true>(be, args, shape);
    else launch_with<T, D, false>(be, args, shape);
}

void attention_mma_backward(struct backend *be, const struct attention_backward_args *args,
                            const struct attention_shape *shape) {
    assert(args->dqkv->dtype == args->qkv->dtype && args->dout->dtype == args->qkv->dtype);
    BY_TYPE_AND_WIDTH(launch, args->qkv->dtype, shape->width, be, args, shape);
}
