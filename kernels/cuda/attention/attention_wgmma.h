/* Tiles, barriers and products for attention on Hopper's tensor cores (sm_90a;
 * attention_wgmma_*.cu).
 *
 * A block holds 64 rows of a head for each of its groups of four warps: their sums are accumulators
 * of wgmma. Tiles of keys and values, or of queries and gradients of outputs, are streamed in steps
 * through a ring of slots. Tensor copies fill the slots and all groups read them.
 *
 * Maps see tensors as [B, T, heads, D]: rows beyond the end read as 0. Heads of 128 and 256 values
 * take two and four tiles side by side. */
#pragma once

#include "kernels/cuda/amax.h"
#include "kernels/cuda/attention/attention_mma.h"
#include "kernels/cuda/ptx_hopper.h"

enum { TILE_BYTES = GROUP_ROWS * TILE_VALUES * 2 };

/* 64 rows of a head. */
template <int D> struct head_tile {
    enum {
        ACROSS = D / TILE_VALUES, /* tiles side by side */
        BYTES = ACROSS * TILE_BYTES
    };
};

/* True if the program has code for this GPU. */
bool attention_wgmma_compiled(void);

/* Creates the map of a 16-bit tensor [B, T, heads, D], from which 64 rows and 64 values of a head
 * are copied at once; or of an fp32 tensor [batch, heads, rows, columns <= 256], copied row by row.
 * Return false, with a message in be, if the driver refuses. */
bool attention_wgmma_map(CUtensorMap *map, struct backend *be, const struct tensor *of, int heads,
                         const struct attention_shape *shape);
bool attention_wgmma_map_floats(CUtensorMap *map, struct backend *be, const float *data,
                                int columns, int64_t rows, int64_t heads, int64_t batch);

/* Returns a value that is the same in a warp, so that the compiler knows it. Otherwise it computes
 * matrix descriptors in registers of the threads, and moves each to a uniform one. */
static __device__ __forceinline__ int uniform(int value) {
    return __shfl_sync(0xffffffffu, value, 0);
}

/* Index of this thread's group of warps. */
static __device__ __forceinline__ int group_of_warps() {
    return uniform((int)threadIdx.x / GROUP_THREADS);
}

/* Barriers that are used in turn: one of them for steps 0, `count`, 2 `count`, ... */
struct step_barriers {
    phase_barrier *first;
    int count;
};
static __device__ __forceinline__ phase_barrier *barrier_of(const struct step_barriers &b,
                                                            int step) {
    return b.first + step % b.count;
}
static __device__ __forceinline__ void wait_for_step(const struct step_barriers &b, int step) {
    phase_wait(barrier_of(b, step), step / b.count % 2);
}
/* Called by each warp. */
static __device__ __forceinline__ void warp_arrives(const struct step_barriers &b, int step) {
    __syncwarp();
    if (threadIdx.x % WARP == 0) phase_arrive(barrier_of(b, step));
}

/* Starts to copy 64 rows of a head, from `row` on. */
template <int D>
static __device__ __forceinline__ void fetch_rows(unsigned char *to, const CUtensorMap *map,
                                                  int head, int row, int batch,
                                                  phase_barrier *full) {
#pragma unroll
    for (int i = 0; i < head_tile<D>::ACROSS; i++)
        tensor_copy(to + i * TILE_BYTES, map, i * TILE_VALUES, head, row, batch, full);
}

/* ---- products of a group */

template <int ADD>
static __device__ __forceinline__ void product(float d[GROUP_SUMS], uint64_t a, uint64_t b,
                                               __half) {
    group_product_f16<0, ADD>(d, a, b);
}
template <int ADD>
static __device__ __forceinline__ void product(float d[GROUP_SUMS], uint64_t a, uint64_t b,
                                               __nv_bfloat16) {
    group_product_bf16<0, ADD>(d, a, b);
}
template <int ADD>
static __device__ __forceinline__ void wide_product(float *d, uint64_t a, uint64_t b, __half) {
    group_product_f16_wide<ADD>(d, a, b);
}
template <int ADD>
static __device__ __forceinline__ void wide_product(float *d, uint64_t a, uint64_t b,
                                                    __nv_bfloat16) {
    group_product_bf16_wide<ADD>(d, a, b);
}
static __device__ __forceinline__ void product(float d[GROUP_SUMS], const uint32_t a[4], uint64_t b,
                                               __half) {
    group_product_f16<1, 1>(d, a, b);
}
static __device__ __forceinline__ void product(float d[GROUP_SUMS], const uint32_t a[4], uint64_t b,
                                               __nv_bfloat16) {
    group_product_bf16<1, 1>(d, a, b);
}

/* Starts s = a b', with 64 rows of a head and TILES times 64, as a group of products. The tiles of
 * b follow one another: first the first 64 values of all rows. */
template <typename T, int D, int TILES>
static __device__ __forceinline__ void
start_scores(float s[TILES][GROUP_SUMS], const unsigned char *a, const unsigned char *b) {
#pragma unroll
    for (int i = 0; i < D / 16; i++) { /* 16 values are 32 bytes of a row */
        uint64_t a_at = tile_descriptor(a) + (uint64_t)((i / 4 * TILE_BYTES + i % 4 * 32) / 16);
        uint64_t b_at =
            tile_descriptor(b) + (uint64_t)((i / 4 * TILES * TILE_BYTES + i % 4 * 32) / 16);
        if (i == 0 && TILES == 1) product<0>(s[0], a_at, b_at, T());
        else if (i == 0) wide_product<0>(s[0], a_at, b_at, T());
        else if (TILES == 1) product<1>(s[0], a_at, b_at, T());
        else wide_product<1>(s[0], a_at, b_at, T());
    }
    group_commit();
}

/* Starts sum += p b, with TILES times 64 rows of a head, as a group of products for each. */
template <typename T, int D, int TILES>
static __device__ __forceinline__ void start_sums(float sum[D / TILE_VALUES][GROUP_SUMS],
                                                  const uint32_t p[TILES][GROUP_ROWS / 16][4],
                                                  const unsigned char *b) {
#pragma unroll
    for (int i = 0; i < TILES * GROUP_ROWS / 16; i++) { /* 16 rows are 2048 bytes */
        const unsigned char *rows = b + i / 4 * head_tile<D>::BYTES;
#pragma unroll
        for (int tile = 0; tile < D / TILE_VALUES; tile++)
            product(sum[tile], p[i / 4][i % 4],
                    tile_descriptor(rows) + (uint64_t)((tile * TILE_BYTES + i % 4 * 2048) / 16),
                    T());
        if (i % 4 == 3) group_commit();
    }
}

/* Rounds s to 16 bits, as A of the next products. */
template <typename T>
static __device__ __forceinline__ void round_to(uint32_t p[GROUP_ROWS / 16][4],
                                                const float s[GROUP_SUMS]) {
#pragma unroll
    for (int i = 0; i < GROUP_ROWS / 16; i++) rounded_fragment<T>(p[i], s + i * 8);
}

/* Masks the scores above the diagonal, or below it where rows are keys; the warp's first row is
 * `ahead` after the first column. */
template <bool KEYS_DOWN>
static __device__ __forceinline__ void mask(float s[GROUP_SUMS], int ahead) {
    int lane = (int)threadIdx.x % WARP, last = ahead + lane / 4 - lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < GROUP_SUMS; i++) {
        int step = i / 4 * 8 + i % 2 - i / 2 % 2 * 8; /* columns right minus rows down */
        if (KEYS_DOWN ? step < last : step > last) s[i] = -INFINITY;
    }
}

/* Masks the scores of keys before the first of each query. first_keys: of the queries of a
 * sequence, up to query `last`. query, key: the first of the scores; rows are queries of a warp, or
 * keys with KEYS_DOWN. First keys do not decrease: most tiles need no mask. */
template <bool KEYS_DOWN>
static __device__ __forceinline__ void mask_before(float s[GROUP_SUMS], const int32_t *first_keys,
                                                   int last, int query, int key) {
    int last_query = query + (KEYS_DOWN ? GROUP_ROWS : 16) - 1;
    if (first_keys[min(last_query, last)] <= key) return;
    int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < GROUP_SUMS; i++) {
        int row = i / 2 % 2 * 8 + lane / 4, column = i / 4 * 8 + i % 2 + lane % 4 * 2;
        int this_query = query + (KEYS_DOWN ? column : row);
        if (key + (KEYS_DOWN ? row : column) < first_keys[min(this_query, last)]) s[i] = -INFINITY;
    }
}

/* ---- results */

/* Offset of chunk `chunk` of a row in 64 rows of a head, in values. */
static __device__ __forceinline__ int chunk_at(int row, int chunk) {
    return chunk / 8 * (TILE_BYTES / 2) + tile_offset<__half, TILE_VALUES>(row, chunk % 8);
}

/* Rounds the warp's sums times a factor for each of the thread's rows and stores them, through
 * `staged`, held rows of the group. A barrier of the group comes first, because PTX does not
 * promise that the products of a warp read only its own rows. `valid` of the group's rows exist.
 * column_sums: optional, the warp's part of the column sums of the stored values; track_amax:
 * optional, of them. */
template <typename T, int D>
static __device__ __forceinline__ void store_rows(T *to, int64_t stride, int valid, T *staged,
                                                  const float sum[D / TILE_VALUES][GROUP_SUMS],
                                                  const float factor[2], float *column_sums,
                                                  struct amax *track_amax) {
    struct magnitudes seen = {0, 0};
    const int chunks = D / PACK;
    int thread = (int)threadIdx.x % GROUP_THREADS, lane = thread % WARP, first = thread / WARP * 16;
    named_barrier(1 + group_of_warps(), GROUP_THREADS);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const float *pair = sum[n / 8] + n % 8 * 4 + half * 2;
            T *at = staged + chunk_at(first + half * 8 + lane / 4, n) + lane % 4 * 2;
            *(uint32_t *)at = rounded_pair(pair[0] * factor[half], pair[1] * factor[half], T());
        }
    __syncwarp();
    float own[PACK] = {};
#pragma unroll
    for (int i = 0; i < 16 * chunks; i += WARP) {
        int row = first + (i + lane) / chunks, chunk = (i + lane) % chunks;
        const T *from = staged + chunk_at(row, chunk);
        if (row >= valid) continue;
        *(uint4 *)(to + row * stride + chunk * PACK) = *(const uint4 *)from;
        if (!column_sums && !track_amax) continue;
        float values[PACK];
        load_pack(values, from);
        for (int j = 0; j < PACK; j++) own[j] += values[j];
        if (track_amax) track_stored<T, PACK>(&seen, values);
    }
    if (column_sums) store_column_sums<chunks, PACK>(column_sums, own);
    if (track_amax) merge_amax_of_warp(track_amax, seen);
}
