/* Parts of attention_mma_backward.cu: tiles in shared memory, products of a warp, masks, and the
 * sums' way to memory. */
#pragma once

#include "kernels/cuda/attention_backward.h"

enum {
    TILE_QUERIES = 32, /* rows of a streamed tile */
    STEP = 16,         /* streamed rows that are multiplied at once */
    BANDS = 2,         /* bands of 16 keys that a warp has */
    WARP_KEYS = 16 * BANDS,
    KEY_WARPS = BLOCK_KEYS / WARP_KEYS,
    CHUNK_COLUMNS = 16 /* one warp's part of a tile of dQ */
};

/* Shared memory of a block, in bytes. With D = 64 a warp sums dK and dV of its keys; with D = 128
 * one warp sums dV and another dK, and P is exchanged between them. */
template <int D> struct layout {
    enum {
        ROLES = D / 64,
        WARPS = KEY_WARPS * ROLES,
        THREADS = WARPS * WARP,
        BLOCKS = 256 / THREADS, /* blocks that a multiprocessor has registers for, 255 a thread */
        OPERANDS = 2 / ROLES,   /* a warp holds 2 of K and V and sums 2 of dK and dV, or 1 */
        SECOND = TILE_QUERIES * D * 2, /* from queries to dout in a stage */
        STAGE = 2 * SECOND,
        SCORES = BLOCK_KEYS * TILE_QUERIES * 2,
        EXCHANGE = ROLES > 1 ? BLOCK_KEYS *STEP * 4 : 0,
        VALUES = 2 * TILE_QUERIES * 4,
        /* The keys come first, then two of each. */
        STAGES_AT = BLOCK_KEYS * D * 2,
        SCORES_AT = STAGES_AT + 2 * STAGE,
        EXCHANGE_AT = SCORES_AT + 2 * SCORES,
        VALUES_AT = EXCHANGE_AT + 2 * EXCHANGE,
        KEPT_AT = VALUES_AT + 2 * VALUES,
        BYTES = KEPT_AT + 26 * 4
    };
    static_assert(2 * (SCORES + EXCHANGE) == BLOCK_KEYS * D * 2,
                  "room for the values at the start");
};

/* Tile of queries that is streamed: 64 queries, in two tiles, of each head that reads the keys,
 * then the 64 before them, down to the diagonal. Heads are the inner loop, so that blocks of other
 * keys, which see fewer queries, come to the same tiles at the same time. */
struct streamed {
    int head, at; /* head: index in the group */
};

/* A warp's part in the order of the sums of dQ. */
struct turn {
    int begun; /* true if the sum of the current 64 queries has begun */
    int pass;  /* index of the semaphore to pass on in this step, or -1 */
};

/* State of a block, kept in shared memory, since the sums need the registers. */
struct kept {
    struct held of;
    int last, readers, number; /* first query of the last tile; query heads that read the same keys;
                                * for take_work */
    struct streamed now[2];    /* tile of this step, and of the next one, by their stages */
    struct turn turns[8];      /* one for each warp */
};
static_assert(layout<64>::BYTES == layout<64>::KEPT_AT + sizeof(struct kept), "room for it");
template <int D> static __device__ __forceinline__ struct kept *kept_in(unsigned char *shared) {
    return (struct kept *)(shared + layout<D>::KEPT_AT);
}
template <int D>
static __device__ __forceinline__ const struct kept *kept_in(const unsigned char *shared) {
    return (const struct kept *)(shared + layout<D>::KEPT_AT);
}
static __device__ __forceinline__ struct held reload_held(const volatile struct kept *kept) {
    struct held of = {kept->of.batch, kept->of.head, kept->of.tile};
    return of;
}
static __device__ __forceinline__ struct streamed reload_tile(const volatile struct kept *kept,
                                                              int stage) {
    struct streamed now = {kept->now[stage].head, kept->now[stage].at};
    return now;
}
static __device__ __forceinline__ int reload_last(const volatile struct kept *kept) {
    return kept->last;
}
static __device__ __forceinline__ int reload_readers(const volatile struct kept *kept) {
    return kept->readers;
}

/* The tiles after and before a tile, which may be the one after the last. */
static __device__ __forceinline__ struct streamed next_of(struct streamed now, int readers) {
    struct streamed next = {now.head, now.at - TILE_QUERIES};
    if (now.at % VALUE_ROWS) return next; /* the second tile of these 64 queries */
    if (now.head + 1 < readers) next.head++, next.at = now.at + TILE_QUERIES;
    else next.head = 0;
    return next;
}
static __device__ __forceinline__ struct streamed previous_of(struct streamed now, int readers) {
    struct streamed previous = {now.head, now.at + TILE_QUERIES};
    if (now.at % VALUE_ROWS == 0) return previous;
    if (now.head > 0) previous.head--, previous.at = now.at - TILE_QUERIES;
    else previous.head = readers - 1;
    return previous;
}

/* Index of the warp's keys. */
static __device__ __forceinline__ int key_warp() {
    return reread_thread_index() / WARP % KEY_WARPS;
}
/* True if the warp computes dK and another one dV. */
template <int D> static __device__ __forceinline__ bool is_second() {
    return layout<D>::ROLES > 1 && reread_thread_index() / WARP >= KEY_WARPS;
}

/* Offsets of row `row` of a query head in qkv and dqkv; of a key head there (its values are
 * kv_heads * D later). */
template <int D>
static __device__ __forceinline__ int64_t query_offset(const struct backward &b, int batch,
                                                       int head, int row) {
    return (int64_t)(batch * b.sequence + row) * b.stride + head * D;
}
template <int D>
static __device__ __forceinline__ int64_t key_offset(const struct backward &b, struct held of,
                                                     int row) {
    return query_offset<D>(b, of.batch, b.heads + of.head, row);
}

/* Starts to copy a tile of queries, dout and the queries' values to a stage. */
template <typename T, int D>
static __device__ __forceinline__ void
fetch(unsigned char *shared, int stage, const struct backward &b, int batch, int head, int query) {
    typedef struct layout<D> layout;
    const int chunks = D / PACK, rows_at_once = layout::THREADS / chunks;
    int thread = reread_thread_index(), row = thread / chunks, chunk = thread % chunks;
    int64_t at = batch * b.sequence + query + row;
    const T *from = (const T *)b.qkv + (at * b.stride + head * D + chunk * PACK);
    const T *other = (const T *)b.dout + (at * b.out_stride + head * D + chunk * PACK);
    shared_pointer to = shared_pointer_to(shared + layout::STAGES_AT) + stage * layout::STAGE +
                        tile_offset<D>(row, chunk) * 2;
#pragma unroll
    for (int i = 0; i < TILE_QUERIES; i += rows_at_once) {
        bool exists = query + row + i < b.sequence;
        cp_async_16(to + i * D * 2, from, exists);
        cp_async_16(to + i * D * 2 + layout::SECOND, other, exists);
        from += (int64_t)rows_at_once * b.stride;
        other += (int64_t)rows_at_once * b.out_stride;
    }
    const int parts = TILE_QUERIES / 4;
    if (thread >= 2 * parts) return;
    const struct query_values *values =
        b.values + values_at(b, batch * b.heads + head) + query / VALUE_ROWS;
    const float *part = thread < parts ? values->x : values->delta;
    cp_async_16(shared + layout::VALUES_AT + stage * layout::VALUES + thread * 16,
                part + query % VALUE_ROWS + thread % parts * 4);
}

/* Loads WARP_KEYS rows of a tile as A fragments. */
template <typename T, int D>
static __device__ __forceinline__ void hold(uint32_t a[BANDS][D / 16][4], const T *tile) {
    struct tile_lanes lanes = down_then_right<D>(tile);
#pragma unroll
    for (int i = 0; i < BANDS * D / 16; i++)
        fragment_a<D>(a[i / (D / 16)][i % (D / 16)], &lanes, i / (D / 16) * 16, i % (D / 16) * 16);
}

/* Addresses of this lane's rows for ldmatrix: for the first 16 x 16 values of a tile, with the four
 * 8 x 8 matrices in the order of fragments_b (along), and of fragments_b_trans (down). Further
 * columns are an exclusive or away, because chunks are stored by one and rows are multiples of 128
 * bytes. So two registers suffice where a table of addresses takes eight. */
struct stream_lanes {
    shared_pointer along, down;
};
template <int D, typename T>
static __device__ __forceinline__ struct stream_lanes stream_lanes(const T *tile) {
    int lane = reread_thread_index() % WARP;
    struct stream_lanes lanes = {
        shared_pointer_to(tile + tile_offset<D>(lane / 16 * 8 + lane % 8, lane / 8 % 2)),
        shared_pointer_to(tile + tile_offset<D>(lane % 16, lane / 16))};
    return lanes;
}
static __device__ __forceinline__ shared_pointer column_from(shared_pointer rows, int column) {
    return (shared_pointer)((uintptr_t)rows ^ (uintptr_t)(column % 64 * 2)) + column / 64 * 128;
}

/* s = a A': the warp's held rows times STEP streamed rows. */
template <typename T, int D>
static __device__ __forceinline__ void
product(float s[BANDS][2][4], const uint32_t a[BANDS][D / 16][4], shared_pointer rows) {
#pragma unroll
    for (int i = 0; i < BANDS * 8; i++) s[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t streamed[4];
        ldmatrix_x4(streamed, column_from(rows, k * 16));
#pragma unroll
        for (int i = 0; i < BANDS * 2; i++)
            multiply_add(s[i / 2][i % 2], a[i / 2][k], streamed + i % 2 * 2, T());
    }
}

/* Rounds the values of STEP queries to A fragments. */
template <typename T>
static __device__ __forceinline__ void rounded(uint32_t a[BANDS][4], const float p[BANDS][2][4]) {
#pragma unroll
    for (int band = 0; band < BANDS; band++) rounded_fragment<T>(a[band], p[band][0], p[band][1]);
}

/* sum += a A, with a [held rows, STEP] and STEP rows of a streamed tile. */
template <typename T, int D>
static __device__ __forceinline__ void accumulate(float sum[BANDS][D / 8][4],
                                                  const uint32_t a[BANDS][4], shared_pointer rows) {
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
        uint32_t streamed[4];
        ldmatrix_x4_trans(streamed, column_from(rows, n * 8));
#pragma unroll
        for (int i = 0; i < BANDS * 2; i++)
            multiply_add(sum[i / 2][n + i % 2], a[i / 2], streamed + i % 2 * 2, T());
    }
}

/* Masks the scores of keys after the query. The first query is `ahead` after the warp's first
 * key; rows are keys. */
static __device__ __forceinline__ void mask(float s[BANDS][2][4], int ahead) {
    int lane = reread_thread_index() % WARP, after = lane / 4 - lane % 4 * 2 - ahead;
#pragma unroll
    for (int i = 0; i < BANDS * 8; i++) {
        int band = i / 8, n = i / 4 % 2, at = i % 4;
        if (after + band * 16 + at / 2 * 8 - n * 8 - at % 2 > 0) s[band][n][at] = -INFINITY;
    }
}

/* Masks the scores of keys before the first of each query; the arguments are those of mask. */
static __device__ __forceinline__ void mask_before(float s[BANDS][2][4], const struct backward &b,
                                                   const struct kept *kept, int ahead) {
    struct held of = reload_held(kept);
    int lane = reread_thread_index() % WARP;
    int key = of.tile * BLOCK_KEYS + key_warp() * WARP_KEYS, query = key + ahead + lane % 4 * 2;
    const int32_t *first_keys = b.first_keys + (int64_t)of.batch * b.sequence;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int n = i / 2, column = i % 2, at = query + n * 8 + column;
        int before = at < b.sequence ? first_keys[at] - key - lane / 4 : 0;
#pragma unroll
        for (int row = 0; row < BANDS * 2; row++)
            if (row * 8 < before) s[row / 2][n][row % 2 * 2 + column] = -INFINITY;
    }
}

/* A tile of dS has a row of TILE_QUERIES values for each key. Its chunks are stored such that eight
 * rows of one chunk lie in different banks, although two rows share the 128 bytes of all banks.
 * Returns the offset of a chunk in values. */
static __device__ __forceinline__ int score_offset(int key, int chunk) {
    return key * TILE_QUERIES + (chunk ^ key / 2 % 4) * PACK;
}

/* Stores dS of the warp's keys in the tile of its stage; index: of the step, see struct step. */
template <typename T, int D>
static __device__ __forceinline__ void store_scores(unsigned char *shared,
                                                    const uint32_t a[BANDS][4], int index) {
    T *tile = (T *)(shared + layout<D>::SCORES_AT + index / 4 * layout<D>::SCORES);
    int lane = reread_thread_index() % WARP, key = key_warp() * WARP_KEYS + lane / 4;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        T *to = tile + score_offset(key, index % 4 * 2 + n) + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < BANDS * 2; i++)
            *(uint32_t *)(to + i * 8 * TILE_QUERIES) = a[i / 2][i % 2 + n * 2];
    }
}

/* Rounds a warp's sums times factor and stores them through shared memory (WARP_KEYS rows at
 * `staging`), because an accumulator has 8 bytes of a row, and a sector of memory has 32. `valid`
 * of the rows exist. The same pass sums the stored values down the columns, for each band apart:
 * column_sums, if any, with its row stride. */
template <typename T, int D>
static __device__ __forceinline__ void store_sums(T *to, int stride, int valid, T *staging,
                                                  const float sum[BANDS][D / 8][4], float factor,
                                                  float *column_sums) {
    const int chunks = D / PACK;
    int lane = reread_thread_index() % WARP;
#pragma unroll
    for (int i = 0; i < BANDS * 2 * chunks; i++) {
        int n = i % chunks, half = i / chunks;
        const float *pair = sum[half / 2][n] + half % 2 * 2;
        uint32_t bits = rounded_pair(pair[0] * factor, pair[1] * factor, T());
        T *at = staging + tile_offset<D>(half * 8 + lane / 4, n) + lane % 4 * 2;
        *(uint32_t *)at = bits;
    }
    __syncwarp();
    for (int band = 0; band < BANDS; band++) {
        float own[PACK] = {};
#pragma unroll
        for (int i = 0; i < 16 * chunks; i += WARP) {
            int row = band * 16 + (i + lane) / chunks, chunk = (i + lane) % chunks;
            const T *from = staging + tile_offset<D>(row, chunk);
            if (row >= valid) continue;
            *(uint4 *)(to + (int64_t)row * stride + chunk * PACK) = *(const uint4 *)from;
            float values[PACK];
            load_pack(values, from);
            for (int j = 0; j < PACK; j++) own[j] += values[j];
        }
        if (column_sums) store_column_sums<chunks>(column_sums + (int64_t)band * stride, own);
    }
    __syncwarp();
}
