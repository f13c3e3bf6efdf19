/* Shared by both kernels of attention's gradient: some tiles are held, others streamed; they are
 * multiplied on tensor cores, masked, summed and stored. attention_mma_backward.cu explains why
 * there are two kernels. */
#pragma once

#include "kernels/cuda/attention/attention_mma.h"

enum {
    HELD_ROWS = 128, /* rows that a block sums gradients for */
    STEP = 16,       /* streamed rows that are multiplied at once */
};

/* Sums of the kernel for keys. */
enum { KEY_SUMS = 1, VALUE_SUMS = 2 };

template <typename T, int D> struct backward_tiles {
    enum {
        ROW = ROW_BYTES<T, D>,
        WIDE = ROW > 256,             /* the second held tile stays in shared memory */
        BANDS = WIDE ? 1 : 256 / ROW, /* bands of 16 held rows that a warp has */
        ROWS = 16 * BANDS,
        THREADS = HELD_ROWS / ROWS * WARP,
        BLOCKS = 256 / THREADS, /* blocks that a multiprocessor has registers for, 255 a thread */
        STREAM_ROWS = WIDE ? 16 : 64, /* rows of a streamed tile */
        STAGES = WIDE ? 2 : 3,        /* one is read, the others are in flight: one barrier each */
        HELD = WIDE ? HELD_ROWS * D : 0, /* values before the stages: the second held tile */
        STAGE = 2 * STREAM_ROWS * D,     /* two streamed tiles or, if not WIDE, one held tile */
        SECOND = STREAM_ROWS * ROW,      /* bytes to the second streamed tile */
    };
};

/* Values of a query that keys read. */
typedef float2 query_values; /* x: -lse log2(e), and -infinity beyond the end; y: delta */

template <typename T> struct backward {
    T *dqkv;
    const T *dout, *qkv, *out;
    const float *lse;
    const int32_t *first_keys; /* [B, sequence], or NULL */
    query_values *values;      /* [B, H, tiles * HELD_ROWS] */
    float *sums; /* optional [B, tiles, warps, stride]: sums of each warp's rows of dqkv */
    int sequence, heads, kv_heads, batch, tiles;
    int group, kv_group;    /* for attention_work, of query heads and of key heads */
    int stride, out_stride; /* row stride of qkv and dqkv, of out and dout */
    float scale, inner;     /* as in struct attention_score */
    float factor;           /* scores to powers of 2 */
};

/* Number of query heads that read the same keys. */
template <typename T>
static __device__ __forceinline__ int readers_of(const struct backward<T> &b) {
    return b.heads / b.kv_heads;
}

/* Tile that a block holds: rows from tile * HELD_ROWS on, in one head. */
struct held {
    int batch, head, tile;
};
/* Offsets of row `row`: in a query head of qkv and dqkv; in a key head there (its values are
 * kv_heads * D later); in a query head of out and dout. */
template <typename T, int D>
static __device__ __forceinline__ int64_t query_offset(const struct backward<T> &b, struct held of,
                                                       int row) {
    return (int64_t)(of.batch * b.sequence + row) * b.stride + of.head * D;
}
template <typename T, int D>
static __device__ __forceinline__ int64_t key_offset(const struct backward<T> &b, struct held of,
                                                     int row) {
    return query_offset<T, D>(b, of, row) + b.out_stride;
}
template <typename T, int D>
static __device__ __forceinline__ int64_t out_offset(const struct backward<T> &b, struct held of,
                                                     int row) {
    return (int64_t)(of.batch * b.sequence + row) * b.out_stride + of.head * D;
}
template <typename T>
static __device__ __forceinline__ int64_t values_offset(const struct backward<T> &b, struct held of,
                                                        int row) {
    return (int64_t)(of.batch * b.heads + of.head) * (b.tiles * HELD_ROWS) + row;
}

/* Loads the warp's rows of a held tile as A fragments. */
template <typename T, int D>
static __device__ __forceinline__ void hold(uint32_t a[][D / DEPTH<T>][4], const T *tile) {
    int first = (int)threadIdx.x / WARP * backward_tiles<T, D>::ROWS;
#pragma unroll
    for (int band = 0; band < backward_tiles<T, D>::BANDS; band++)
#pragma unroll
        for (int k = 0; k < D / DEPTH<T>; k++) {
            struct tile_lanes lanes = down_then_right<T, D>(tile + (first + band * 16) * D);
            fragment_a<T, D>(a[band][k], &lanes, 0, k * DEPTH<T>);
        }
}

/* Starts to copy the held tiles: to stages 1 and 2, from where hold() loads them. If WIDE, the
 * first one is loaded here, and the second one takes its place. */
template <typename T, int D>
static __device__ __forceinline__ void load_held(uint32_t a[][D / DEPTH<T>][4], T *shared,
                                                 const T *first, int64_t stride, const T *second,
                                                 int64_t second_stride, int valid) {
    typedef struct backward_tiles<T, D> tiles;
    T *to = shared + (tiles::WIDE ? 0 : tiles::STAGE);
    load_tile<T, D, HELD_ROWS, tiles::THREADS>(to, first, stride, valid);
    if (tiles::WIDE) {
        cp_async_commit();
        cp_async_wait<0>();
        round_tile<T, D, HELD_ROWS, tiles::THREADS>(to);
        __syncthreads();
        hold<T, D>(a, to);
        __syncthreads();
    } else to += tiles::STAGE;
    load_tile<T, D, HELD_ROWS, tiles::THREADS>(to, second, second_stride, valid);
    cp_async_commit();
}

/* Rounds the held tiles that load_held has copied last, before the barrier. */
template <typename T, int D> static __device__ __forceinline__ void round_held(T *shared) {
    typedef struct backward_tiles<T, D> tiles;
    T *to = shared + (tiles::WIDE ? 0 : tiles::STAGE);
    if (!tiles::WIDE) round_tile<T, D, HELD_ROWS, tiles::THREADS>(to);
    round_tile<T, D, HELD_ROWS, tiles::THREADS>(to + (tiles::WIDE ? 0 : tiles::STAGE));
}

/* Addresses in stage 0 of this lane's chunks of a streamed tile: for the first 32 bytes of 16 rows,
 * in the order of fragments_b, and for the first columns, in that of fragments_b_trans. Further
 * columns are an exclusive or away, because chunks are stored by one and rows are multiples of 128
 * bytes. So two registers suffice where a table of addresses takes eight. */
struct stream_lanes {
    shared_pointer along, down;
};
template <typename T, int D>
static __device__ __forceinline__ struct stream_lanes stream_lanes(const T *stages) {
    struct stream_lanes lanes = {right_then_down<T, D>(stages).at[0],
                                 transposed_pointers<T, D>(stages).even.at[0]};
    return lanes;
}
/* The same for the warp's rows of the second held tile, with WIDE heads. */
template <typename T, int D>
static __device__ __forceinline__ shared_pointer held_lanes(const T *tile) {
    int first = (int)threadIdx.x / WARP * backward_tiles<T, D>::ROWS;
    return down_then_right<T, D>(tile + first * D).at[0];
}
/* byte: of a row. */
static __device__ __forceinline__ shared_pointer column_from(shared_pointer rows, int byte) {
    return (shared_pointer)((uintptr_t)rows ^ (uintptr_t)(byte % 128)) + byte / 128 * 128;
}

/* s = a A': the warp's held rows times STEP streamed rows. HELD: the held rows are not in `a`, but
 * in shared memory, at `held`. */
template <typename T, int D, bool HELD>
static __device__ __forceinline__ void product(float s[][2][4], const uint32_t a[][D / DEPTH<T>][4],
                                               shared_pointer held, shared_pointer rows) {
    const int bands = backward_tiles<T, D>::BANDS;
#pragma unroll
    for (int i = 0; i < bands * 8; i++) s[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll
    for (int k = 0; k < D / DEPTH<T>; k++) {
        uint32_t streamed[4], loaded[4];
        ldmatrix_x4(streamed, column_from(rows, k * 32));
        if (HELD) ldmatrix_x4(loaded, column_from(held, k * 32));
#pragma unroll
        for (int i = 0; i < bands * 2; i++)
            multiply_add(s[i / 2][i % 2], HELD ? loaded : a[i / 2][k], streamed + i % 2 * 2, T());
    }
}

/* sum += P A, with P [held rows, STEP] rounded to T, and STEP rows of a streamed tile. */
template <typename T, int D>
static __device__ __forceinline__ void accumulate(float sum[][D / 8][4], const float p[][2][4],
                                                  shared_pointer rows) {
    const int bands = backward_tiles<T, D>::BANDS, deep = STEP / DEPTH<T>;
    uint32_t a[deep][bands][4];
    struct transposed_lanes lanes; /* fp32: one exclusive or for each address is enough */
#pragma unroll
    for (int i = 0; i < deep * bands; i++)
        rounded_fragment<T>(a[i / bands][i % bands], p[i % bands][i / bands * DEPTH<T> / 8]);
#pragma unroll
    for (int i = 0; i < 4 && sizeof(T) == 4; i++) {
        lanes.even.at[i] = opaque_address(column_from(rows, i * 32));
        lanes.odd.at[i] = opaque_address(column_from(rows, i * 32 + 16) + ROW_BYTES<T, D>);
    }
#pragma unroll
    for (int k = 0; k < deep; k++)
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t streamed[4];
            if constexpr (sizeof(T) == 2) ldmatrix_x4_trans(streamed, column_from(rows, n * 16));
            else fragments_b_trans<T, D>(streamed, &lanes, k * DEPTH<T>, n * 8);
#pragma unroll
            for (int i = 0; i < bands * 2; i++)
                multiply_add(sum[i / 2][n + i % 2], a[k][i / 2], streamed + i % 2 * 2, T());
        }
}

/* Replaces the warp's scores by their tanh, for a soft cap. */
template <typename T, int D>
static __device__ __forceinline__ void cap(float s[][2][4], float inner) {
#pragma unroll
    for (int i = 0; i < backward_tiles<T, D>::BANDS * 8; i++)
        s[i / 8][i / 4 % 2][i % 4] = tanhf(s[i / 8][i / 4 % 2][i % 4] * inner);
}

/* Returns the derivative of a capped score by the one before. A masked score is -inf: 0. */
static __device__ __forceinline__ float cap_slope(float tanh) {
    float t = fmaxf(tanh, -1.0f);
    return 1 - t * t;
}

/* Masks the scores of keys after the query. The first of the warp's queries is `ahead` after the
 * first of its keys; rows are keys, or queries. */
template <typename T, int D, bool KEYS_DOWN>
static __device__ __forceinline__ void mask(float s[][2][4], int ahead) {
    int lane = (int)threadIdx.x % WARP, down = lane / 4, right = lane % 4 * 2;
    int after = (KEYS_DOWN ? down - right : right - down) - ahead;
#pragma unroll
    for (int i = 0; i < backward_tiles<T, D>::BANDS * 8; i++) {
        int band = i / 8, n = i / 4 % 2, at = i % 4;
        int step = band * 16 + at / 2 * 8 - n * 8 - at % 2; /* rows down minus columns right */
        if (after + (KEYS_DOWN ? step : -step) > 0) s[band][n][at] = -INFINITY;
    }
}

/* Masks the scores of keys before the first of each query. query: the warp's first of the batch,
 * key: its first; rows are keys, or queries. */
template <typename T, int D, bool KEYS_DOWN>
static __device__ __forceinline__ void mask_before(float s[][2][4], const struct backward<T> &b,
                                                   int batch, int query, int key) {
    int lane = (int)threadIdx.x % WARP, down = lane / 4, right = lane % 4 * 2;
    const int32_t *first_keys = b.first_keys + (int64_t)batch * b.sequence;
#pragma unroll
    for (int i = 0; i < backward_tiles<T, D>::BANDS * 8; i++) {
        int band = i / 8, n = i / 4 % 2, at = i % 4;
        int row = band * 16 + at / 2 * 8 + down, column = n * 8 + at % 2 + right;
        int this_query = query + (KEYS_DOWN ? column : row);
        int this_key = key + (KEYS_DOWN ? row : column);
        if (this_query < b.sequence && this_key < first_keys[this_query])
            s[band][n][at] = -INFINITY;
    }
}

/* Destination of a warp's part of the column sums of dqkv, from a head's first column on, or NULL
 * without column sums. */
template <typename T, int D>
static __device__ __forceinline__ float *warp_sums(const struct backward<T> &b, struct held of,
                                                   int64_t column) {
    const int warps = backward_tiles<T, D>::THREADS / WARP;
    if (!b.sums) return NULL;
    int64_t group = (int64_t)(of.batch * b.tiles + of.tile) * warps + reread_thread_index() / WARP;
    return b.sums + group * b.stride + column;
}

/* Rounds the warp's sums times factor and stores them through shared memory (its own rows of
 * `staging`), because an accumulator has 8 bytes of a row, and a sector of memory has 32. The same
 * pass sums the stored values down the columns, for column_sums. */
template <typename T, int D>
static __device__ __forceinline__ void store_sums(T *to, int64_t stride, int valid, T *staging,
                                                  const float sum[][D / 8][4], float factor,
                                                  float *column_sums) {
    const int rows = backward_tiles<T, D>::ROWS, chunks = D / CHUNK<T>;
    int thread = reread_thread_index(), lane = thread % WARP, first = thread / WARP * rows;
    staging += first * D;
#pragma unroll
    for (int i = 0; i < rows / 8 * (D / 8); i++) {
        int n = i % (D / 8), half = i / (D / 8);
        const float *pair = sum[half / 2][n] + half % 2 * 2;
        store_pair<T, D>(staging, half * 8 + lane / 4, n * 8, lane % 4 * 2, pair[0] * factor,
                         pair[1] * factor);
    }
    __syncwarp();
    float own[CHUNK<T>] = {};
#pragma unroll
    for (int i = 0; i < rows * chunks; i += WARP) {
        int row = (i + lane) / chunks, chunk = (i + lane) % chunks;
        const T *from = staging + tile_offset<T, D>(row, chunk);
        if (first + row >= valid) continue;
        *(uint4 *)(to + (first + row) * stride + chunk * CHUNK<T>) = *(const uint4 *)from;
        if (!column_sums) continue;
        float values[CHUNK<T>];
        load_chunk(values, from);
        for (int j = 0; j < CHUNK<T>; j++) own[j] += values[j];
    }
    if (column_sums) store_column_sums<chunks, CHUNK<T>>(column_sums, own);
}

/* Reloads values that are needed once per streamed tile from shared memory, since the sums need the
 * registers. */
static __device__ __forceinline__ struct held reload(const volatile struct held *kept) {
    struct held of = {kept->batch, kept->head, kept->tile};
    return of;
}

/* Starts to copy rows from `at` on of keys and values, or queries and dout, to a stage. of: a key
 * head, or a query head. */
template <typename T, int D, bool KEYS>
static __device__ __forceinline__ void fetch(T *stages, int stage, const struct backward<T> &b,
                                             struct held of, int at) {
    const int chunks = D / CHUNK<T>, rows_at_once = backward_tiles<T, D>::THREADS / chunks;
    int thread = reread_thread_index(), row = thread / chunks, chunk = thread % chunks;
    const T *from = b.qkv + (query_offset<T, D>(b, of, at + row) + chunk * CHUNK<T>);
    const T *other = b.dout + (out_offset<T, D>(b, of, at + row) + chunk * CHUNK<T>);
    int stride = KEYS ? b.stride : b.out_stride;
    if (KEYS) from += b.out_stride, other = from + b.kv_heads * D;
    shared_pointer to = shared_pointer_to(stages + stage * backward_tiles<T, D>::STAGE +
                                          tile_offset<T, D>(row, chunk));
#pragma unroll
    for (int i = 0; i < backward_tiles<T, D>::STREAM_ROWS; i += rows_at_once) {
        bool exists = at + row + i < b.sequence;
        cp_async_16(to + i * ROW_BYTES<T, D>, from, exists);
        cp_async_16(to + i * ROW_BYTES<T, D> + backward_tiles<T, D>::SECOND, other, exists);
        from += (int64_t)rows_at_once * b.stride;
        other += (int64_t)rows_at_once * stride;
    }
}

/* Rounds both tiles that fetch has copied to a stage, between the wait for it and the barrier. */
template <typename T, int D>
static __device__ __forceinline__ void round_stage(T *stages, int stage) {
    typedef struct backward_tiles<T, D> tiles;
    T *tile = stages + stage * tiles::STAGE;
    round_tile<T, D, tiles::STREAM_ROWS, tiles::THREADS>(tile);
    round_tile<T, D, tiles::STREAM_ROWS, tiles::THREADS>(tile + tiles::STREAM_ROWS * D);
}
