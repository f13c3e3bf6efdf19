/* The gradient of attention on tensor cores, after FlashAttention-2 (Dao 2023): S and P are
 * recomputed, tile by tile, from q, k and the log-sum-exp of the forward pass.
 *
 *     P = exp(scale S - lse), S = Q K'      dP = dO V'      dS = P * (dP - delta)
 *     dV = P' dO      dK = scale dS' Q      dQ = scale dS K      delta = row sums of dO * O
 *
 * There are two kernels. query_gradients_kernel holds 128 queries and streams keys and values: dQ.
 * key_gradients_kernel holds 128 keys and streams queries: dK and dV. Each result is summed in
 * registers by one warp in the order of the tiles: the same bits every time.
 *
 * Reason for two kernels: one kernel computes 5 products instead of 7, but dQ must then be summed
 * over blocks, in order (attention_hopper_backward.h). With mma.sync each warp waits for its turn
 * and for the sums in memory beside its products, and dS passes through shared memory: by a
 * simulation of the machine code such a kernel gains nothing.
 *
 * The limit of mma.sync is the rate of ldmatrix from shared memory: a product of 16 rows needs a
 * fragment of 512 bytes (4 cycles of the multiprocessor) for 2 mma; four quarters of it finish an
 * mma each in 8 cycles (sm_80) or some 6 (sm_90). So a warp holds 32 rows at D = 64, and both held
 * operands stay in registers as A fragments: 1 ldmatrix for 4 mma, half of the available rate. Sums
 * for 32 rows of dK and dV take 128 registers, the held fragments 64, scores 32. At D = 128 the
 * same registers hold 16 rows: 1 ldmatrix for 2 mma.
 *
 * At D = 256 they hold one operand and one sum for 16 rows. The other operand stays in shared
 * memory (2 ldmatrix for 2 mma), and the keys take two kernels: one for dV, one for dK. 128 held
 * rows and two stages of 16 streamed rows fit the 99 KB of a block on sm_86, sm_89 and sm_120.
 *
 * With a soft cap S is its tanh (struct attention_score), and dS is multiplied by 1 - S^2.
 *
 * Scores are computed with the held rows down, so that P and dS leave the accumulators as the A
 * fragments of the next product and never touch shared memory. */
#include "kernels/cuda/attention/attention_mma_backward.h"
#include "kernels/cuda/partials.h"

/* Computes x and delta of the block's queries, and stores them in memory and in `values` in shared
 * memory. Each warp processes its own rows, whose dout is in the tile. */
template <typename T, int D>
static __device__ __forceinline__ void find_values(query_values *values, query_values *to,
                                                   const T *dout, const T *out, int64_t stride,
                                                   const float *lse, int valid) {
    const int rows = backward_tiles<T, D>::ROWS, chunks = D / CHUNK<T>, at_once = WARP / chunks;
    int lane = (int)threadIdx.x % WARP, first = (int)threadIdx.x / WARP * rows;
#pragma unroll
    for (int i = 0; i < rows; i += at_once) {
        int row = first + i + lane / chunks, chunk = lane % chunks;
        float a[CHUNK<T>], b[CHUNK<T>] = {}, delta = 0;
        load_chunk(a, dout + tile_offset<T, D>(row, chunk));
        if (row < valid) load_chunk(b, out + row * stride + chunk * CHUNK<T>);
        for (int j = 0; j < CHUNK<T>; j++) delta += a[j] * b[j];
        for (int j = chunks / 2; j > 0; j /= 2) delta += __shfl_xor_sync(0xffffffffu, delta, j);
        if (chunk == 0) {
            float x = row < valid ? -lse[row] * LOG2_OF_E : -INFINITY;
            to[row] = values[row] = make_float2(x, delta);
        }
    }
    __syncwarp();
}

/* dq += dS K for STEP keys; the warp's first query is `ahead` after the first of them, `key`.
 * LIMITED: queries have first keys. */
template <typename T, int D, bool DIAGONAL, bool LIMITED, bool CAPPED>
static __device__ __forceinline__ void
query_step(float dq[][D / 8][4], const uint32_t q[][D / DEPTH<T>][4],
           const uint32_t dout[][D / DEPTH<T>][4], shared_pointer held,
           const query_values rows[][2], shared_pointer along, shared_pointer down, int ahead,
           const struct backward<T> &b, int batch, int key) {
    const int bands = backward_tiles<T, D>::BANDS;
    float s[bands][2][4], ds[bands][2][4];
    product<T, D, false>(s, q, held, along);
    if (CAPPED) cap<T, D>(s, b.inner);
    if (DIAGONAL) mask<T, D, false>(s, ahead);
    if (LIMITED) mask_before<T, D, false>(s, b, batch, key + ahead, key);
    product<T, D, backward_tiles<T, D>::WIDE>(ds, dout, held, along + backward_tiles<T, D>::SECOND);
#pragma unroll
    for (int i = 0; i < bands * 8; i++) {
        int band = i / 8, n = i / 4 % 2, j = i % 4;
        float p = exp2_approx(s[band][n][j] * b.factor + rows[band][j / 2].x);
        ds[band][n][j] = p * (ds[band][n][j] - rows[band][j / 2].y);
        if (CAPPED) ds[band][n][j] *= cap_slope(s[band][n][j]);
    }
    accumulate<T, D>(dq, ds, down);
}

/* dQ of HELD_ROWS queries; keys and values are streamed, up to the diagonal. */
template <typename T, int D, bool LIMITED, bool CAPPED>
static __global__ void __launch_bounds__((backward_tiles<T, D>::THREADS),
                                         (backward_tiles<T, D>::BLOCKS))
    query_gradients_kernel(struct backward<T> b) {
    typedef struct backward_tiles<T, D> tiles;
    const int STREAM_ROWS = tiles::STREAM_ROWS, STAGES = tiles::STAGES;
    DYNAMIC_SHARED(T, shared);
    T *stages = shared + tiles::HELD;
    query_values *values = (query_values *)(stages + STAGES * tiles::STAGE);
    struct attention_work work =
        attention_work((int)blockIdx.x, b.tiles, b.batch * b.heads, b.group);
    /* The last queries have the most keys. */
    struct held of = {work.head / b.heads, work.head % b.heads, b.tiles - 1 - work.tile};
    struct held keys = {of.batch, of.head / readers_of(b), of.tile};
    int first = of.tile * HELD_ROWS;
    int valid = b.sequence - first, lane = (int)threadIdx.x % WARP;
    int end = valid < HELD_ROWS ? b.sequence : first + HELD_ROWS; /* end of the keys */
    int warp_row = (int)threadIdx.x / WARP * tiles::ROWS, query = first + warp_row;
    int64_t out_at = out_offset<T, D>(b, of, first);
    int begin = 0; /* first key of the block */
    if (LIMITED)
        begin = b.first_keys[(int64_t)of.batch * b.sequence + first] / STREAM_ROWS * STREAM_ROWS;

    uint32_t q[tiles::BANDS][D / DEPTH<T>][4], dout[tiles::BANDS][D / DEPTH<T>][4];
    load_held<T, D>(q, shared, b.qkv + query_offset<T, D>(b, of, first), b.stride, b.dout + out_at,
                    b.out_stride, valid);
    fetch<T, D, true>(stages, 0, b, keys, begin);
    cp_async_commit();
    cp_async_wait<1>();
    round_held<T, D>(shared);
    __syncthreads();
    const T *held_dout = shared + (tiles::WIDE ? 0 : 2 * tiles::STAGE);
    if (!tiles::WIDE) {
        hold<T, D>(q, shared + tiles::STAGE);
        hold<T, D>(dout, held_dout);
    }
    find_values<T, D>(values, b.values + values_offset<T>(b, of, first), held_dout, b.out + out_at,
                      b.out_stride, b.lse + (int64_t)work.head * b.sequence + first, valid);
    query_values rows[tiles::BANDS][2];
#pragma unroll
    for (int i = 0; i < tiles::BANDS * 2; i++)
        rows[i / 2][i % 2] = values[warp_row + i * 8 + lane / 4];
    __syncthreads();
    if (STAGES > 2 && begin + STREAM_ROWS < end)
        fetch<T, D, true>(stages, 1, b, keys, begin + STREAM_ROWS);
    if (STAGES > 2) cp_async_commit();

    struct stream_lanes lanes = stream_lanes<T, D>(stages);
    shared_pointer held = held_lanes<T, D>(shared);
    float dq[tiles::BANDS][D / 8][4] = {};
    for (int at = begin, stage = 0; at < end; at += STREAM_ROWS, stage = (stage + 1) % STAGES) {
        cp_async_wait<STAGES - 2>();
        round_stage<T, D>(stages, stage);
        __syncthreads();
        int next = at + (STAGES - 1) * STREAM_ROWS;
        if (next < end) fetch<T, D, true>(stages, (stage + STAGES - 1) % STAGES, b, keys, next);
        cp_async_commit();
        int ahead = query - at, offset = stage * tiles::STAGE * (int)sizeof(T);
        if (ahead >= STREAM_ROWS - 1) {
#pragma unroll 2
            for (int row = 0; row < STREAM_ROWS; row += STEP)
                query_step<T, D, false, LIMITED, CAPPED>(
                    dq, q, dout, held, rows, lanes.along + (offset + row * tiles::ROW),
                    lanes.down + (offset + row * tiles::ROW), ahead - row, b, of.batch, at + row);
        } else {
#pragma unroll 1
            for (int row = 0; row < STREAM_ROWS && row < ahead + tiles::ROWS; row += STEP)
                query_step<T, D, true, LIMITED, CAPPED>(
                    dq, q, dout, held, rows, lanes.along + (offset + row * tiles::ROW),
                    lanes.down + (offset + row * tiles::ROW), ahead - row, b, of.batch, at + row);
        }
    }
    __syncthreads();
    store_sums<T, D>(b.dqkv + query_offset<T, D>(b, of, first), b.stride, valid, shared, dq,
                     b.scale, warp_sums<T, D>(b, of, of.head * D));
}

/* Starts to copy queries and dout, with the values of the queries. */
template <typename T, int D>
static __device__ __forceinline__ void fetch_queries(T *stages, query_values *values, int stage,
                                                     const struct backward<T> &b, struct held of,
                                                     int at) {
    int i = reread_thread_index() * 2;
    fetch<T, D, false>(stages, stage, b, of, at);
    const int STREAM_ROWS = backward_tiles<T, D>::STREAM_ROWS;
    if (i < STREAM_ROWS)
        cp_async_16(values + stage * STREAM_ROWS + i, b.values + values_offset<T>(b, of, at + i));
}

/* dv += P' dO and dk += dS' Q for STEP queries; `columns` are the values of this lane's first
 * column. The first query is `ahead` after the warp's first key. Scores come first and dP after
 * them, so that exponentials overlap with products. SUMS: which of the two. */
template <typename T, int D, bool LIMITED, bool CAPPED, int SUMS>
static __device__ __forceinline__ void
key_step(float dk[][D / 8][4], float dv[][D / 8][4], const uint32_t k[][D / DEPTH<T>][4],
         const uint32_t v[][D / DEPTH<T>][4], shared_pointer held, const query_values *columns,
         shared_pointer along, shared_pointer down, int ahead, const struct backward<T> &b,
         int batch, int key) {
    const int bands = backward_tiles<T, D>::BANDS, second = backward_tiles<T, D>::SECOND;
    float p[bands][2][4], ds[bands][2][4];
    product<T, D, false>(p, k, held, along);
    if (CAPPED) cap<T, D>(p, b.inner);
    if (ahead < backward_tiles<T, D>::ROWS - 1) mask<T, D, true>(p, ahead);
    if (LIMITED) mask_before<T, D, true>(p, b, batch, key + ahead, key);
    if (SUMS & KEY_SUMS) product<T, D, backward_tiles<T, D>::WIDE>(ds, v, held, along + second);
#pragma unroll
    for (int i = 0; i < bands * 8; i++) {
        int band = i / 8, n = i / 4 % 2, j = i % 4;
        float score = p[band][n][j];
        p[band][n][j] = exp2_approx(score * b.factor + columns[n * 8 + j % 2].x);
        if (CAPPED && (SUMS & KEY_SUMS))
            ds[band][n][j] = (ds[band][n][j] - columns[n * 8 + j % 2].y) * cap_slope(score);
    }
    if (SUMS & VALUE_SUMS) accumulate<T, D>(dv, p, down + second);
    if constexpr ((SUMS & KEY_SUMS) != 0) {
#pragma unroll
        for (int i = 0; i < bands * 8; i++) {
            int band = i / 8, n = i / 4 % 2, j = i % 4;
            float change = CAPPED ? ds[band][n][j] : ds[band][n][j] - columns[n * 8 + j % 2].y;
            ds[band][n][j] = p[band][n][j] * change;
        }
        accumulate<T, D>(dk, ds, down);
    }
}

/* Tile of queries that is streamed: the tiles of one head from the diagonal on, then those of the
 * next head that reads the same keys. */
struct streamed {
    int head, at; /* head: index in the group */
};
template <typename T, int D>
static __device__ __forceinline__ struct streamed next_of(struct streamed now, int first,
                                                          int sequence) {
    struct streamed next = {now.head, now.at + backward_tiles<T, D>::STREAM_ROWS};
    if (next.at >= sequence) next.head++, next.at = first;
    return next;
}

/* Starts to copy the tile, if one is left. of: the head of keys. */
template <typename T, int D>
static __device__ __forceinline__ void fetch_streamed(T *stages, query_values *values, int stage,
                                                      const struct backward<T> &b, struct held of,
                                                      struct streamed what) {
    of.head = of.head * readers_of(b) + what.head;
    if (what.head < readers_of(b)) fetch_queries<T, D>(stages, values, stage, b, of, what.at);
}

/* dK and dV of HELD_ROWS keys, or one of them; queries and dout are streamed. */
template <typename T, int D, bool LIMITED, bool CAPPED, int SUMS>
static __global__ void __launch_bounds__((backward_tiles<T, D>::THREADS),
                                         (backward_tiles<T, D>::BLOCKS))
    key_gradients_kernel(struct backward<T> b) {
    typedef struct backward_tiles<T, D> tiles;
    const int STREAM_ROWS = tiles::STREAM_ROWS, STAGES = tiles::STAGES;
    DYNAMIC_SHARED(T, shared);
    T *stages = shared + tiles::HELD;
    query_values *values = (query_values *)(stages + STAGES * tiles::STAGE);
    struct attention_work work =
        attention_work((int)blockIdx.x, b.tiles, b.batch * b.kv_heads, b.kv_group);
    struct held of = {work.head / b.kv_heads, work.head % b.kv_heads, work.tile};
    int first = of.tile * HELD_ROWS, valid = b.sequence - first, thread = (int)threadIdx.x;
    int key = first + thread / WARP * tiles::ROWS;
    volatile struct held *kept = (volatile struct held *)(values + STAGES * STREAM_ROWS);
    if (thread == 0) kept->batch = of.batch, kept->head = of.head, kept->tile = of.tile;
    const T *k_rows = b.qkv + key_offset<T, D>(b, of, first);
    const int32_t *first_keys = b.first_keys + (int64_t)of.batch * b.sequence;
    const int end =
        LIMITED ? last_reader(first_keys, first, b.sequence, first + HELD_ROWS) : b.sequence;

    uint32_t k[tiles::BANDS][D / DEPTH<T>][4], v[tiles::BANDS][D / DEPTH<T>][4];
    load_held<T, D>(k, shared, k_rows, b.stride, k_rows + b.kv_heads * D, b.stride, valid);
    struct streamed now = {0, first};
    fetch_streamed<T, D>(stages, values, 0, b, of, now);
    cp_async_commit();
    cp_async_wait<1>();
    round_held<T, D>(shared);
    __syncthreads();
    if (!tiles::WIDE) {
        hold<T, D>(k, shared + tiles::STAGE);
        hold<T, D>(v, shared + 2 * tiles::STAGE);
    }
    __syncthreads();
    if (STAGES > 2) {
        fetch_streamed<T, D>(stages, values, 1, b, of, next_of<T, D>(now, first, end));
        cp_async_commit();
    }

    struct stream_lanes lanes = stream_lanes<T, D>(stages);
    shared_pointer held = held_lanes<T, D>(shared);
    float dk[tiles::BANDS][D / 8][4] = {}, dv[tiles::BANDS][D / 8][4] = {};
    for (int stage = 0; now.head < readers_of(b); stage = (stage + 1) % STAGES) {
        cp_async_wait<STAGES - 2>();
        round_stage<T, D>(stages, stage);
        __syncthreads();
        of = reload(kept);
        first = of.tile * HELD_ROWS;
        struct streamed next = next_of<T, D>(now, first, end);
        if (STAGES > 2) next = next_of<T, D>(next, first, end);
        fetch_streamed<T, D>(stages, values, (stage + STAGES - 1) % STAGES, b, of, next);
        cp_async_commit();
#pragma unroll 1
        for (int row = 0; row < STREAM_ROWS; row += STEP) {
            int offset = (stage * tiles::STAGE + row * D) * (int)sizeof(T);
            if (now.at + row + STEP > key)
                key_step<T, D, LIMITED, CAPPED, SUMS>(dk, dv, k, v, held,
                                                      values + stage * STREAM_ROWS + row +
                                                          reread_thread_index() % 4 * 2,
                                                      lanes.along + offset, lanes.down + offset,
                                                      now.at + row - key, b, of.batch, key);
        }
        now = next_of<T, D>(now, reload(kept).tile * HELD_ROWS, end);
    }
    __syncthreads();
    of = reload(kept);
    first = of.tile * HELD_ROWS;
    T *dk_rows = b.dqkv + key_offset<T, D>(b, of, first);
    float *sums = warp_sums<T, D>(b, of, b.out_stride + of.head * D);
    if (SUMS & KEY_SUMS)
        store_sums<T, D>(dk_rows, b.stride, b.sequence - first, shared, dk, b.scale, sums);
    if (SUMS & VALUE_SUMS)
        store_sums<T, D>(dk_rows + b.kv_heads * D, b.stride, b.sequence - first,
                         shared + (tiles::WIDE ? 0 : tiles::STAGE), dv, 1.0f,
                         sums ? sums + b.kv_heads * D : NULL);
}

static int held_tiles(const struct attention_shape *shape) {
    return (int)blocks_of(shape->sequence, HELD_ROWS);
}

/* Number of groups of rows, one for each warp, which has 16 of them if they are long. */
static int64_t row_groups(const struct attention_shape *shape, enum dtype dtype) {
    bool is_short = shape->width * (int64_t)dtype_bytes(dtype) == ROW_BYTES<__half, 64>;
    int rows =
        is_short ? (int)backward_tiles<__half, 64>::ROWS : (int)backward_tiles<__half, 128>::ROWS;
    return shape->batch * held_tiles(shape) * (HELD_ROWS / rows);
}

/* Lays out the workspace at `memory`, which may be NULL. Returns its size in bytes. */
template <typename T>
static size_t lay_out(struct backward<T> *b, const struct attention_backward_args *args,
                      const struct attention_shape *shape, void *memory) {
    struct arena arena = {(char *)memory, 0, SIZE_MAX};
    int64_t rows = shape->batch * shape->heads * held_tiles(shape) * HELD_ROWS;
    int64_t groups = row_groups(shape, args->qkv->dtype);
    int64_t sums = args->column_sums ? groups * tensor_columns(args->dqkv) : 0;
    b->values = (query_values *)arena_take(&arena, (size_t)rows * sizeof(query_values));
    b->sums = sums ? (float *)arena_take(&arena, (size_t)sums * sizeof(float)) : NULL;
    return arena.used;
}

size_t attention_mma_backward_bytes(const struct attention_backward_args *args,
                                    const struct attention_shape *shape) {
    struct backward<__half> b;
    return lay_out(&b, args, shape, NULL);
}

/* Launches the kernel for keys. */
template <typename T, int D, bool LIMITED, bool CAPPED, int SUMS>
static void launch_keys(struct backend *be, const struct backward<T> &b) {
    typedef struct backward_tiles<T, D> tiles;
    size_t bytes = (tiles::HELD + tiles::STAGES * tiles::STAGE) * sizeof(T) +
                   tiles::STAGES * tiles::STREAM_ROWS * sizeof(query_values) + sizeof(struct held);
    const void *kernel = (const void *)key_gradients_kernel<T, D, LIMITED, CAPPED, SUMS>;
    unsigned blocks = (unsigned)(b.tiles * b.batch * b.kv_heads);
    if (!cuda_shared(be, kernel, bytes, "attention_backward")) return;
    LAUNCH((key_gradients_kernel<T, D, LIMITED, CAPPED, SUMS>), blocks, tiles::THREADS, bytes,
           cuda_state(be)->compute, b);
}

template <typename T, int D, bool LIMITED, bool CAPPED>
static void launch_with(struct backend *be, const struct attention_backward_args *args,
                        const struct attention_shape *shape) {
    typedef struct backward_tiles<T, D> tiles;
    struct backward<T> b;
    b.dqkv = (T *)args->dqkv->data;
    b.dout = (const T *)args->dout->data;
    b.qkv = (const T *)args->qkv->data;
    b.out = (const T *)args->out->data;
    b.lse = args->lse;
    b.first_keys = args->first_keys;
    lay_out(&b, args, shape, backend_workspace(be, attention_mma_backward_bytes(args, shape)));
    b.sequence = (int)shape->sequence;
    b.heads = (int)shape->heads;
    b.kv_heads = (int)shape->kv_heads;
    b.batch = (int)shape->batch;
    b.tiles = held_tiles(shape);
    b.group = attention_group(shape, args->qkv->dtype, shape->batch * shape->heads);
    b.kv_group = attention_group(shape, args->qkv->dtype, shape->batch * shape->kv_heads);
    b.stride = (b.heads + 2 * b.kv_heads) * D;
    b.out_stride = b.heads * D;
    struct attention_score score = attention_score(args->scale, args->softcap);
    b.scale = score.scale;
    b.inner = score.inner;
    b.factor = (float)(LOG2_OF_E / score.divisor);
    unsigned query_blocks = (unsigned)(b.tiles * b.batch * b.heads);
    /* With D = 64, two of these blocks fit the 100 KB of sm_86, sm_89 and sm_120. */
    size_t bytes =
        (tiles::HELD + tiles::STAGES * tiles::STAGE) * sizeof(T) + HELD_ROWS * sizeof(query_values);
    const char *what = "attention_backward";
    const void *kernel = (const void *)query_gradients_kernel<T, D, LIMITED, CAPPED>;
    if (query_blocks == 0 || !cuda_shared(be, kernel, bytes, what)) return;
    LAUNCH((query_gradients_kernel<T, D, LIMITED, CAPPED>), query_blocks, tiles::THREADS, bytes,
           cuda_state(be)->compute, b);
    launch_keys<T, D, LIMITED, CAPPED, tiles::WIDE ? VALUE_SUMS : KEY_SUMS | VALUE_SUMS>(be, b);
    if constexpr (tiles::WIDE) launch_keys<T, D, LIMITED, CAPPED, KEY_SUMS>(be, b);
    if (b.sums) {
        struct sums sums = sums_of(args->column_sums);
        add_partials(be, &sums, b.sums, row_groups(shape, args->qkv->dtype));
    }
    cuda_launched(be, what);
}

template <typename T, int D>
static void launch(struct backend *be, const struct attention_backward_args *args,
                   const struct attention_shape *shape) {
    assert(args->softcap == 0 || args->first_keys);
    if constexpr (sizeof(T) == 2)
        if (args->softcap != 0) return launch_with<T, D, true, true>(be, args, shape);
    if (args->first_keys) launch_with<T, D, true, false>(be, args, shape);
    else launch_with<T, D, false, false>(be, args, shape);
}

void attention_mma_backward(struct backend *be, const struct attention_backward_args *args,
                            const struct attention_shape *shape) {
    assert(args->dqkv->dtype == args->qkv->dtype && args->dout->dtype == args->qkv->dtype);
    BY_ANY_TYPE_AND_WIDTH(launch, args->qkv->dtype, shape->width, be, args, shape);
}
