/* Tiles in shared memory and fragments in registers, for attention on tensor cores.
 *
 * A tile is rows of D 16-bit values, stored without gaps. A chunk is 8 values (16 bytes, what
 * cp.async and ldmatrix move). Chunk c of row r is stored at index c ^ (r % 8): eight rows of one
 * chunk, which ldmatrix reads at once, then lie in eight different groups of four banks, and so do
 * the chunks of a row, which cp.async writes.
 *
 * mma.sync m16n8k16 computes D[16, 8] += A[16, 16] B[16, 8]. Lane l of the warp holds these
 * elements of an accumulator:
 *
 *     d[0], d[1]: row l / 4,     columns l % 4 * 2, + 1
 *     d[2], d[3]: row l / 4 + 8, the same columns
 *
 * Two accumulators side by side, rounded to 16 bits in pairs, are therefore an A fragment. */
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/storage.h"

/* d += a b */
static __device__ __forceinline__ void multiply_add(float d[4], const uint32_t a[4],
                                                    const uint32_t b[2], __half) {
    mma_m16n8k16_f16_f32(d, a, b, d);
}
static __device__ __forceinline__ void multiply_add(float d[4], const uint32_t a[4],
                                                    const uint32_t b[2], __nv_bfloat16) {
    mma_m16n8k16_bf16_f32(d, a, b, d);
}

/* Two values rounded to 16 bits, the first in the low half. */
static __device__ __forceinline__ uint32_t rounded_pair(float low, float high, __half) {
    __half2 pair = __floats2half2_rn(low, high);
    uint32_t bits;
    memcpy(&bits, (const void *)&pair, sizeof bits);
    return bits;
}
static __device__ __forceinline__ uint32_t rounded_pair(float low, float high, __nv_bfloat16) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, (const void *)&pair, sizeof bits);
    return bits;
}

/* Two accumulators side by side (16 rows, 16 columns) as an A fragment. */
template <typename T>
static __device__ __forceinline__ void rounded_fragment(uint32_t a[4], const float left[4],
                                                        const float right[4]) {
    a[0] = rounded_pair(left[0], left[1], T());
    a[1] = rounded_pair(left[2], left[3], T());
    a[2] = rounded_pair(right[0], right[1], T());
    a[3] = rounded_pair(right[2], right[3], T());
}

/* Offset of chunk `chunk` of row `row` in a tile, in values. */
template <int D> static __device__ __forceinline__ int tile_offset(int row, int chunk) {
    return row * D + (chunk ^ row % 8) * PACK;
}

/* Starts to copy `rows` (rows of global memory, stride values apart, the first `valid` of which
 * exist) to a tile of ROWS rows; missing rows are filled with zeros. THREADS threads copy. Their
 * offsets are recomputed at each call: kept over a loop, they take registers that the products
 * need. */
template <typename T, int D, int ROWS, int THREADS>
static __device__ __forceinline__ void load_tile(T *tile, const T *rows, int64_t stride,
                                                 int64_t valid) {
    const int chunks = D / PACK, rows_at_once = THREADS / chunks;
    static_assert(ROWS % rows_at_once == 0 && rows_at_once % 8 == 0, "chunks stay in their column");
    int thread = reread_thread_index(), row = thread / chunks, chunk = thread % chunks;
    const T *from = opaque(rows + (row * stride + chunk * PACK));
    shared_pointer to = shared_pointer_to(tile + tile_offset<D>(row, chunk));
#pragma unroll
    for (int i = 0; i < ROWS; i += rows_at_once)
        cp_async_16(to + i * D * 2, from + i * stride, row + i < valid);
}

/* Addresses of a lane's rows of 8 values, for ldmatrix to read 16 x 16 values of a tile of width D:
 * at[i] for columns from 16 i, from row 0. All other addresses are a constant number of bytes
 * away. */
struct tile_lanes {
    shared_pointer at[4];
};
template <int D, typename T>
static __device__ __forceinline__ struct tile_lanes lane_pointers(const T *tile, int down,
                                                                  int right) {
    struct tile_lanes lanes;
#pragma unroll
    for (int i = 0; i < 4; i++)
        lanes.at[i] =
            shared_pointer_to(tile + down * D + (2 * i ^ right ^ (int)threadIdx.x % 8) * PACK);
    return lanes;
}
template <int D>
static __device__ __forceinline__ shared_pointer lane_pointer(const struct tile_lanes *lanes,
                                                              int row, int column) {
    return lanes->at[column / 16 % 4] + (row * D + column / 64 * 64) * 2;
}

/* Order of the four 8 x 8 matrices of 16 x 16 values: down the first 8 columns, then down the
 * next. */
template <int D, typename T>
static __device__ __forceinline__ struct tile_lanes down_then_right(const T *tile) {
    int lane = (int)threadIdx.x % WARP;
    return lane_pointers<D>(tile, lane % 16, lane / 16);
}
/* Order along the first 8 rows, then along the next. */
template <int D, typename T>
static __device__ __forceinline__ struct tile_lanes right_then_down(const T *tile) {
    int lane = (int)threadIdx.x % WARP;
    return lane_pointers<D>(tile, lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

/* A[m, k] from a tile whose rows are m; lanes: down_then_right. m and k, here and below, are
 * constants (or counters of unrolled loops) and multiples of 16. */
template <int D>
static __device__ __forceinline__ void fragment_a(uint32_t a[4], const struct tile_lanes *lanes,
                                                  int m, int k) {
    ldmatrix_x4(a, lane_pointer<D>(lanes, m, k));
}
/* B[k, n], 16 columns, from a tile whose rows are n; lanes: right_then_down. b and b + 2 are the
 * operands of two mma. */
template <int D>
static __device__ __forceinline__ void fragments_b(uint32_t b[4], const struct tile_lanes *lanes,
                                                   int k, int n) {
    ldmatrix_x4(b, lane_pointer<D>(lanes, n, k));
}
/* B[k, n], 16 columns, from a tile whose rows are k; lanes: down_then_right. */
template <int D>
static __device__ __forceinline__ void
fragments_b_trans(uint32_t b[4], const struct tile_lanes *lanes, int k, int n) {
    ldmatrix_x4_trans(b, lane_pointer<D>(lanes, k, n));
}

/* Sums each column over the warp's rows, of which a lane has added some, and stores chunks of PACK
 * columns. */
template <int CHUNKS>
static __device__ __forceinline__ void store_column_sums(float *to, float own[PACK]) {
    int lane = reread_thread_index() % WARP;
#pragma unroll
    for (int i = 0; i < PACK; i++)
        for (int other = CHUNKS; other < WARP; other *= 2)
            own[i] += __shfl_xor_sync(0xffffffffu, own[i], other);
    if (lane < CHUNKS) store_pack(to + lane * PACK, own);
}

/* Calls function<T, D> with the arguments that follow, for 16 bits. */
#define BY_TYPE(function, dtype, D, ...)                            \
    do {                                                            \
        assert((dtype) == DTYPE_F16 || (dtype) == DTYPE_BF16);      \
        if ((dtype) == DTYPE_F16) function<__half, D>(__VA_ARGS__); \
        else function<__nv_bfloat16, D>(__VA_ARGS__);               \
    } while (0)

/* The same for heads of 64 or 128 values. */
#define BY_TYPE_AND_WIDTH(function, dtype, width, ...)                \
    do {                                                              \
        assert((width) == 64 || (width) == 128);                      \
        if ((width) == 64) BY_TYPE(function, dtype, 64, __VA_ARGS__); \
        else BY_TYPE(function, dtype, 128, __VA_ARGS__);              \
    } while (0)

/* The same for heads of 256 values, too. */
#define BY_TYPE_AND_ANY_WIDTH(function, dtype, width, ...)              \
    do {                                                                \
        if ((width) == 256) BY_TYPE(function, dtype, 256, __VA_ARGS__); \
        else BY_TYPE_AND_WIDTH(function, dtype, width, __VA_ARGS__);    \
    } while (0)

/* Tile and head of piece `number` of the work. Heads come in groups whose keys and values stay in
 * the L2 cache; within a group all heads do tile 0 first, then tile 1: if tile 0 is the longest,
 * the short ones fill the gaps at the end. */
struct attention_work {
    int head, tile; /* head: index in B * H */
};
static __device__ __forceinline__ struct attention_work attention_work(int number, int tiles,
                                                                       int heads, int group) {
    int first = number / (group * tiles) * group;
    int size = heads - first < group ? heads - first : group, at = number - first * tiles;
    struct attention_work work = {first + at % size, at / size};
    return work;
}

/* Number of heads in a group: two tensors of 16 bits in some 16 MB of the 40 to 60 of an L2. */
static inline int attention_group(const struct attention_shape *shape, int64_t heads) {
    int64_t fitting = ((int64_t)16 << 20) / (shape->sequence * shape->width * 4);
    if (fitting < 1) fitting = 1;
    /* Groups are nearly equal: a small last one would leave multiprocessors without work. */
    return (int)blocks_of(heads, blocks_of(heads, fitting));
}

/* Returns the end of the queries of a sequence that see a key before `end`, at least `first`: first
 * keys do not decrease. */
static __device__ __forceinline__ int last_reader(const int32_t *first_keys, int first,
                                                  int sequence, int end) {
    int low = first, high = sequence;
    while (low < high) {
        int middle = (low + high) / 2;
        if (first_keys[middle] < end) low = middle + 1;
        else high = middle;
    }
    return low;
}
