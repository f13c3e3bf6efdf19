/* Attention on tensor cores, forward: FlashAttention-2 (Dao 2023, arXiv:2307.08691) on mma.sync.
 *
 * A block has 128 queries of one head and streams the keys, a tile at a time, up to its diagonal.
 * Per row it keeps the maximum m of the scores so far, the sum of exp(score - m), and the output of
 * this softmax without its division; when m grows, sum and output shrink by exp(old m - m).
 *
 * Four warps with 32 queries each, not eight with 16: a warp that multiplies 16 rows by 64 keys of
 * D values reads 256 D bytes of keys and values for 4096 D FLOP. At 128 bytes per clock that is 2 D
 * clocks, and the tensor cores need 2 D (A100, 2048 FLOP per clock) or some 1.6 D (Hopper with
 * mma.sync): shared memory would be the limit. 32 rows read the same for twice the work. Two blocks
 * share a multiprocessor, so that one warp's exponentials run beside another's products: of a tile,
 * D = 64, a scheduler's tensor core has some 820 clocks of work on Hopper, its unit for
 * exponentials 512, and some 590 instructions are issued. The products are the limit, if all else
 * overlaps.
 *
 * For D = 64 a tile has 64 keys: 64 + D registers for scores and output, and the queries' fragments
 * fit beside them (32 more). For D = 128 a tile has 48, and the queries are reloaded for every
 * tile: 64 keys would spill registers, and 32 would keep shared memory busy for 94 % of the time of
 * the products on Hopper, instead of 83 %.
 *
 * With D = 256 the output of 16 rows takes as many registers as that of 32 rows with D = 128. A
 * block then has eight warps with 16 rows each, and a multiprocessor one block: as many warps.
 *
 * In fp32 with TF32, heads of 64 values take as many bytes as those of 128 in 16 bits, and heads of
 * 128 as many as those of 256; their outputs take half as many registers. Each thread rounds the
 * chunks that it has copied before the other threads read them (round_tile).
 *
 * With a soft cap the scores become their tanh (struct attention_score) before they are masked.
 *
 * Keys and values stream through a ring of three tiles: while one is used, the next is ready or in
 * flight, and the third, which no warp uses any more, is being filled. With D = 128, two such
 * blocks do not fit the 100 KB of sm_86, sm_89 and sm_120. There the ring has two slots of 32 keys:
 * a tile is fetched while the other slot's is used. (FlashAttention-2 does the same.) So it is with
 * D = 256, where one block has to fit. */
#include "kernels/cuda/attention/attention_mma.h"

enum { QUERIES = 128, SLACK = 8 };

/* 16 rows each, of a warp */
template <typename T, int D> static constexpr int ROW_TILES = ROW_BYTES<T, D> <= 256 ? 2 : 1;
template <typename T, int D> static constexpr int WARP_ROWS = 16 * ROW_TILES<T, D>;
template <typename T, int D> static constexpr int THREADS = QUERIES / WARP_ROWS<T, D> *WARP;

/* Keys of a tile, by the slots of the ring. */
template <typename T, int D, int SLOTS, bool LIMITED>
static __device__ __host__ __forceinline__ constexpr int tile_keys() {
    const int bytes = ROW_BYTES<T, D>;
    return bytes > 256 && SLOTS == 2 ? 16
           : LIMITED || bytes > 256  ? (bytes <= 128 ? 48 : 32)
           : bytes <= 128            ? 64
           : SLOTS == 2              ? 32
                                     : 48;
}

/* Shared memory of a block. */
template <typename T, int D, int SLOTS, bool LIMITED> static constexpr size_t shared_bytes() {
    return (QUERIES + SLOTS * tile_keys<T, D, SLOTS, LIMITED>()) * D * sizeof(T);
}

/* Rows that a lane has a part of: [i][half] is row 16 i + 8 half + lane / 4 of the warp. */
template <typename T, int D> struct softmax_rows {
    float shift[ROW_TILES<T, D>][2]; /* used instead of the maximum; of factor q k' */
    float sum[ROW_TILES<T, D>][2];   /* sum of exp2(factor q k' - shift) over this lane's columns */
};

template <typename T, int D, bool LIMITED>
static __device__ __forceinline__ constexpr bool queries_in_registers() {
    return (ROW_BYTES<T, D> <= 128 && !LIMITED) || (sizeof(T) == 4 && D == 128);
}

template <typename T, int D> static __device__ __forceinline__ int warp_row() {
    return (int)threadIdx.x / WARP * WARP_ROWS<T, D>;
}

/* s = q k' */
template <typename T, int D, int KEYS, bool LIMITED>
static __device__ __forceinline__ void
multiply_keys(float s[ROW_TILES<T, D>][KEYS / 8][4],
              const uint32_t q[ROW_TILES<T, D>][D / DEPTH<T>][4], const T *queries, const T *keys) {
    struct tile_lanes lanes = right_then_down<T, D>(keys);
#pragma unroll
    for (int i = 0; i < ROW_TILES<T, D>; i++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) s[i][n][0] = s[i][n][1] = s[i][n][2] = s[i][n][3] = 0;
    struct tile_lanes query_lanes = down_then_right<T, D>(queries + warp_row<T, D>() * D);
#pragma unroll
    for (int k = 0; k < D / DEPTH<T>; k++) {
        uint32_t a[ROW_TILES<T, D>][4], b[4];
#pragma unroll
        for (int i = 0; i < ROW_TILES<T, D>; i++) {
            if (!queries_in_registers<T, D, LIMITED>())
                fragment_a<T, D>(a[i], &query_lanes, i * 16, k * DEPTH<T>);
            else
                for (int r = 0; r < 4; r++) a[i][r] = q[i][k][r];
        }
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            fragments_b<T, D>(b, &lanes, k * DEPTH<T>, n * 16);
#pragma unroll
            for (int i = 0; i < ROW_TILES<T, D>; i++) {
                multiply_add(s[i][2 * n], a[i], b, T());
                multiply_add(s[i][2 * n + 1], a[i], b + 2, T());
            }
        }
    }
}

/* Replaces scores by their tanh, for a soft cap. */
template <typename T, int D, int KEYS>
static __device__ __forceinline__ void cap(float s[ROW_TILES<T, D>][KEYS / 8][4], float inner) {
#pragma unroll
    for (int i = 0; i < ROW_TILES<T, D>; i++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][n][e] = tanhf(s[i][n][e] * inner);
}

/* Masks the scores above the diagonal. The warp's first row is `ahead` after the first key. */
template <typename T, int D, int KEYS>
static __device__ __forceinline__ void mask(float s[ROW_TILES<T, D>][KEYS / 8][4], int ahead) {
    int lane = reread_thread_index() % WARP, last = ahead + lane / 4 - lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < ROW_TILES<T, D>; i++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (n * 8 + e % 2 > last + i * 16 + e / 2 * 8) s[i][n][e] = -INFINITY;
}

/* Masks the scores of keys before each row's first. first_keys: of the block's rows, in shared
 * memory; key: the tile's first. */
template <typename T, int D, int KEYS>
static __device__ __forceinline__ void mask_before(float s[ROW_TILES<T, D>][KEYS / 8][4],
                                                   const int *first_keys, int key) {
    int thread = reread_thread_index(), lane = thread % WARP;
    first_keys += thread / WARP * WARP_ROWS<T, D> + lane / 4;
#pragma unroll
    for (int i = 0; i < ROW_TILES<T, D>; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int before = first_keys[i * 16 + half * 8] - key - lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (n * 8 + e < before) s[i][n][2 * half + e] = -INFINITY;
        }
}

/* Raises the rows' shifts to the maxima of s, and scales sums and outputs down accordingly. A shift
 * changes only when the maximum exceeds it by more than SLACK, a factor of 2^SLACK: nothing
 * overflows, relative errors are the same, and most tiles do not touch the outputs. */
template <typename T, int D, int KEYS>
static __device__ __forceinline__ void
follow_maxima(struct softmax_rows<T, D> *rows, float o[ROW_TILES<T, D>][D / 8][4],
              const float s[ROW_TILES<T, D>][KEYS / 8][4], float factor) {
    float shrink[ROW_TILES<T, D>][2];
    bool any = false;
#pragma unroll
    for (int i = 0; i < ROW_TILES<T, D>; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float max = -INFINITY, shift = rows->shift[i][half];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                max = fmaxf(max, fmaxf(s[i][n][2 * half], s[i][n][2 * half + 1]));
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2)) * factor;
            bool rises = max - shift > SLACK;
            any = any || rises;
            rows->shift[i][half] = rises ? max : shift;
            shrink[i][half] = exp2_approx(shift - rows->shift[i][half]);
            rows->sum[i][half] *= shrink[i][half];
        }
    if (!__any_sync(0xffffffffu, any)) return;
#pragma unroll
    for (int i = 0; i < ROW_TILES<T, D>; i++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[i][n][e] *= shrink[i][e / 2];
}

/* exp2(factor s - shift) for DEPTH columns, added to the sums, and rounded to p. */
template <typename T, int D>
static __device__ __forceinline__ void exponentials(uint32_t p[4], struct softmax_rows<T, D> *rows,
                                                    int i, const float s[][4], float factor) {
    float values[DEPTH<T> / 2];
#pragma unroll
    for (int e = 0; e < DEPTH<T> / 2; e++) {
        int half = e / 2 % 2;
        values[e] = exp2_approx(fmaf(s[e / 4][e % 4], factor, -rows->shift[i][half]));
        rows->sum[i][half] += values[e];
    }
    rounded_fragment<T, true>(p, values); /* if a value is a NaN, so is the sum */
}

/* o += p v. The exponentials of DEPTH keys come right before their products, so that they can
 * overlap with the products of the keys before. */
template <typename T, int D, int KEYS>
static __device__ __forceinline__ void
multiply_values(float o[ROW_TILES<T, D>][D / 8][4], struct softmax_rows<T, D> *rows,
                const float s[ROW_TILES<T, D>][KEYS / 8][4], const T *values, float factor) {
    struct transposed_lanes lanes = transposed_pointers<T, D>(values);
#pragma unroll
    for (int k = 0; k < KEYS / DEPTH<T>; k++) {
        uint32_t p[ROW_TILES<T, D>][4], b[4];
#pragma unroll
        for (int i = 0; i < ROW_TILES<T, D>; i++)
            exponentials<T, D>(p[i], rows, i, s[i] + k * DEPTH<T> / 8, factor);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            fragments_b_trans<T, D>(b, &lanes, k * DEPTH<T>, n * 16);
#pragma unroll
            for (int i = 0; i < ROW_TILES<T, D>; i++) {
                multiply_add(o[i][2 * n], p[i], b, T());
                multiply_add(o[i][2 * n + 1], p[i], b + 2, T());
            }
        }
    }
}

/* Input of a block, and its current position. */
template <typename T> struct stream {
    const T *keys, *values; /* first rows of the head, in global memory */
    int64_t stride;         /* between rows */
    int sequence;           /* number of rows */
    /* The ring: this tile's slots, and, of three, the slot to fill next. */
    T *now_keys, *now_values, *spare;
};

template <typename T, int D, int KEYS>
static __device__ __forceinline__ void fetch(T *to, const T *rows, const struct stream<T> *in,
                                             int first) {
    load_tile<T, D, KEYS, THREADS<T, D>>(to, rows + first * in->stride, in->stride,
                                         in->sequence - first);
}

/* Processes one tile of keys from `first` on; this warp's queries start `ahead` after it. LIMITED:
 * queries have first keys, as all with a soft cap have. */
template <typename T, int D, int SLOTS, bool DIAGONAL, bool LIMITED, bool CAPPED>
static __device__ __forceinline__ void
attend(float o[ROW_TILES<T, D>][D / 8][4], struct softmax_rows<T, D> *rows, struct stream<T> *in,
       const uint32_t q[ROW_TILES<T, D>][D / DEPTH<T>][4], const T *queries, const int *first_keys,
       int first, int ahead, bool more, float factor, float inner) {
    const int KEYS = tile_keys<T, D, SLOTS, LIMITED>();
    float s[ROW_TILES<T, D>][KEYS / 8][4];
    bool seen = !DIAGONAL || ahead > -WARP_ROWS<T, D>; /* the warp has a pair below the diagonal */
    if (LIMITED)
        seen = seen && first + KEYS > first_keys[reread_thread_index() / WARP * WARP_ROWS<T, D>];
    cp_async_wait<SLOTS - 2>();
    round_tile<T, D, KEYS, THREADS<T, D>>(in->now_keys);
    __syncthreads(); /* keys are ready; the previous values are no longer read */
    if (SLOTS == 2) fetch<T, D, KEYS>(in->now_values, in->values, in, first);
    else if (more) fetch<T, D, KEYS>(in->spare, in->keys, in, first + KEYS);
    cp_async_commit();
    if (seen) {
        multiply_keys<T, D, KEYS, LIMITED>(s, q, queries, in->now_keys);
        if (CAPPED) cap<T, D, KEYS>(s, inner);
        if (DIAGONAL) mask<T, D, KEYS>(s, ahead);
        if (LIMITED) mask_before<T, D, KEYS>(s, first_keys, first);
        follow_maxima<T, D, KEYS>(rows, o, s, factor);
    }
    cp_async_wait<SLOTS - 2>();
    round_tile<T, D, KEYS, THREADS<T, D>>(in->now_values);
    __syncthreads(); /* values are ready; the keys are no longer read */
    if (more) fetch<T, D, KEYS>(in->now_keys, SLOTS == 2 ? in->keys : in->values, in, first + KEYS);
    cp_async_commit();
    if (seen) multiply_values<T, D, KEYS>(o, rows, s, in->now_values, factor);
    if (SLOTS == 2) { /* the slots stay, but their addresses are not worth registers */
        in->now_keys = (T *)opaque(in->now_keys);
        in->now_values = (T *)opaque(in->now_values);
        return;
    }
    T *spare = in->now_values;
    in->now_values = in->now_keys;
    in->now_keys = in->spare;
    in->spare = spare;
}

/* Divides by the sums and stores the outputs, through shared memory (which held this warp's
 * queries), so that whole chunks are written. `valid` of the block's rows exist. */
template <typename T, int D>
static __device__ __forceinline__ void finish(T *out, int64_t out_stride, float *lse, int valid,
                                              T *staged, const float o[ROW_TILES<T, D>][D / 8][4],
                                              const struct softmax_rows<T, D> *rows) {
    int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < ROW_TILES<T, D>; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = warp_row<T, D>() + i * 16 + half * 8 + lane / 4;
            float sum = rows->sum[i][half];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (lane % 4 == 0 && row < valid)
                lse[row] = (rows->shift[i][half] + log2f(sum)) * LN_OF_2;
            float inverse = 1 / sum;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                store_pair<T, D>(staged, row, n * 8, lane % 4 * 2, o[i][n][2 * half] * inverse,
                                 o[i][n][2 * half + 1] * inverse);
        }
    __syncwarp();
    const int chunks = D / CHUNK<T>;
#pragma unroll
    for (int i = 0; i < WARP_ROWS<T, D> * chunks; i += WARP) {
        int row = warp_row<T, D>() + (i + lane) / chunks, chunk = (i + lane) % chunks;
        if (row < valid)
            *(uint4 *)(out + row * out_stride + chunk * CHUNK<T>) =
                *(const uint4 *)(staged + tile_offset<T, D>(row, chunk));
    }
}

/* factor: scores to powers of 2; inner: of struct attention_score. The grid: B H times the tiles of
 * 128 queries, see attention_work. */
template <typename T, int D, int SLOTS, bool LIMITED, bool CAPPED>
static __global__ void __launch_bounds__((THREADS<T, D>), (256 / THREADS<T, D>))
    attention_forward_kernel(T *__restrict__ out, float *__restrict__ lse,
                             const T *__restrict__ qkv, const int32_t *__restrict__ all_first_keys,
                             struct attention_shape shape, int group, float factor, float inner) {
    const int KEYS = tile_keys<T, D, SLOTS, LIMITED>();
    DYNAMIC_SHARED(T, queries);
    T *ring = queries + QUERIES * D;
    int sequence = (int)shape.sequence, heads = (int)shape.heads;
    int tiles = (sequence + QUERIES - 1) / QUERIES;
    struct attention_work work =
        attention_work((int)blockIdx.x, tiles, (int)shape.batch * heads, group);
    int begin = (tiles - 1 - work.tile) * QUERIES; /* the last queries have the most keys */
    int kv_heads = (int)shape.kv_heads;
    int64_t batch = work.head / heads, head = work.head % heads, all = (int64_t)heads * D;
    int64_t values = (int64_t)kv_heads * D, stride = all + 2 * values;
    const T *q_rows = qkv + batch * sequence * stride + head * D;
    const T *k_rows = qkv + batch * sequence * stride + all + head / (heads / kv_heads) * D;
    struct stream<T> in = {
        k_rows, k_rows + values, stride, sequence, ring, ring + KEYS *D,
            ring + (SLOTS - 1) * KEYS *D
    };
    __shared__ int first_keys[LIMITED ? QUERIES : 1]; /* the block's rows */
    int first = 0;
    if (LIMITED) {
        const int32_t *from = all_first_keys + batch * sequence + begin;
        int row = (int)threadIdx.x;
        static_assert(QUERIES <= THREADS<T, D>, "a thread for each row");
        if (THREADS<T, D> == QUERIES || row < QUERIES)
            first_keys[row] = begin + row < sequence ? from[row] : 0;
        first = from[0] / KEYS * KEYS;
    }

    load_tile<T, D, QUERIES, THREADS<T, D>>(queries, q_rows + begin * in.stride, in.stride,
                                            sequence - begin);
    cp_async_commit();
    fetch<T, D, KEYS>(in.now_keys, in.keys, &in, first);
    cp_async_commit();
    if (SLOTS == 3) fetch<T, D, KEYS>(in.now_values, in.values, &in, first);
    if (SLOTS == 3) cp_async_commit();
    cp_async_wait<SLOTS - 1>();
    round_tile<T, D, QUERIES, THREADS<T, D>>(queries);
    __syncthreads();

    struct tile_lanes lanes = down_then_right<T, D>(queries + warp_row<T, D>() * D);
    uint32_t q[ROW_TILES<T, D>][D / DEPTH<T>][4];
    float o[ROW_TILES<T, D>][D / 8][4] = {};
    struct softmax_rows<T, D> rows;
#pragma unroll
    for (int i = 0; i < ROW_TILES<T, D>; i++) {
        /* A row may see no key of the first tiles: a finite shift then leaves its sum 0. */
        rows.shift[i][0] = rows.shift[i][1] = LIMITED ? -1e30f : -INFINITY;
        rows.sum[i][0] = rows.sum[i][1] = 0;
#pragma unroll
        for (int k = 0; k < D / DEPTH<T> && queries_in_registers<T, D, LIMITED>(); k++)
            fragment_a<T, D>(q[i][k], &lanes, i * 16, k * DEPTH<T>);
    }

    int end = begin + QUERIES < sequence ? begin + QUERIES : sequence;
    int ahead = begin + warp_row<T, D>();
    int whole = begin / KEYS * KEYS; /* keys in tiles that all queries see */
    for (; first < whole; first += KEYS)
        attend<T, D, SLOTS, false, LIMITED, CAPPED>(o, &rows, &in, q, queries, first_keys, first,
                                                    ahead - first, true, factor, inner);
    for (; first < end; first += KEYS)
        attend<T, D, SLOTS, true, LIMITED, CAPPED>(o, &rows, &in, q, queries, first_keys, first,
                                                   ahead - first, first + KEYS < end, factor,
                                                   inner);
    finish<T, D>(out + (batch * sequence + begin) * all + head * D, all,
                 lse + (int64_t)work.head * sequence + begin, sequence - begin, queries, o, &rows);
}

bool attention_mma_supports(const struct cuda_state *cuda, enum dtype dtype, float softcap,
                            int64_t width) {
    if (cuda->major < 8 || (width != 64 && width != 128 && width != 256)) return false;
    return dtype != DTYPE_F32 || (cuda->tf32 && width <= 128 && softcap == 0);
}

template <typename T, int D, int SLOTS, bool LIMITED, bool CAPPED>
static void launch_with(struct backend *be, const struct attention_forward_args *args,
                        const struct attention_shape *shape) {
    int64_t blocks = shape->batch * shape->heads * blocks_of(shape->sequence, QUERIES);
    size_t shared = shared_bytes<T, D, SLOTS, LIMITED>();
    struct attention_score score = attention_score(args->scale, args->softcap);
    const void *kernel = (const void *)attention_forward_kernel<T, D, SLOTS, LIMITED, CAPPED>;
    if (blocks == 0) return;
    if (!cuda_shared(be, kernel, shared, "attention_forward")) return;
    LAUNCH((attention_forward_kernel<T, D, SLOTS, LIMITED, CAPPED>), (unsigned)blocks,
           (THREADS<T, D>), shared, cuda_state(be)->compute, (T *)args->out->data, args->lse,
           (const T *)args->qkv->data, args->first_keys, *shape,
           attention_group(shape, args->qkv->dtype, shape->batch * shape->heads),
           (float)(LOG2_OF_E / score.divisor), score.inner);
    cuda_launched(be, "attention_forward");
}

template <typename T, int D, int SLOTS>
static void launch_slots(struct backend *be, const struct attention_forward_args *args,
                         const struct attention_shape *shape) {
    assert(args->softcap == 0 || args->first_keys);
    if constexpr (sizeof(T) == 2)
        if (args->softcap != 0) return launch_with<T, D, SLOTS, true, true>(be, args, shape);
    if (args->first_keys) launch_with<T, D, SLOTS, true, false>(be, args, shape);
    else launch_with<T, D, SLOTS, false, false>(be, args, shape);
}

template <typename T, int D>
static void launch(struct backend *be, const struct attention_forward_args *args,
                   const struct attention_shape *shape) {
    constexpr int ROW = ROW_BYTES<T, D>, FEWER = ROW == 128 ? 3 : 2;
    const struct cuda_state *cuda = cuda_state(be);
    size_t bytes = shared_bytes<T, D, 3, false>();
    bool fits =
        ROW == 128 || (ROW == 256 ? cuda_blocks_fit(cuda, 2, bytes) : bytes <= cuda->shared_bytes);
    if (fits) launch_slots<T, D, 3>(be, args, shape);
    else launch_slots<T, D, FEWER>(be, args, shape);
}

void attention_mma_forward(struct backend *be, const struct attention_forward_args *args,
                           const struct attention_shape *shape) {
    assert(args->out->dtype == args->qkv->dtype);
    BY_ANY_TYPE_AND_WIDTH(launch, args->qkv->dtype, shape->width, be, args, shape);
}
