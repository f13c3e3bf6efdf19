/* Tiles in shared memory and fragments in registers, for attention on tensor cores.
 *
 * A tile is rows of D values of type T, stored without gaps. A chunk is 16 bytes, what cp.async and
 * ldmatrix move. Chunk c of row r is stored at index c ^ (r % 8): eight rows of one chunk, which
 * ldmatrix reads at once, then lie in eight different groups of four banks, and so do the chunks of
 * a row, which cp.async writes.
 *
 * mma.sync computes D[16, 8] += A[16, DEPTH] B[DEPTH, 8], where DEPTH values are 32 bytes: 16
 * values of 16 bits (m16n8k16), or 8 of fp32 that are rounded to TF32 (m16n8k8). In bytes, tiles
 * and fragments of both are the same. Lane l of the warp holds these elements of an accumulator:
 *
 *     d[0], d[1]: row l / 4,     columns l % 4 * 2, + 1
 *     d[2], d[3]: row l / 4 + 8, the same columns
 *
 * Two accumulators side by side, rounded to 16 bits in pairs, are therefore an A fragment. One of
 * them, rounded to TF32, is an A fragment whose columns are permuted: column l % 4 of A is column
 * l % 4 * 2 of the accumulator, and column l % 4 + 4 the one after it. The rows of B that it
 * multiplies are read in that order (fragments_b_trans). */
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/storage.h"

/* Values of a chunk, and values that an mma adds up. */
template <typename T> static constexpr int CHUNK = 16 / (int)sizeof(T);
template <typename T> static constexpr int DEPTH = 32 / (int)sizeof(T);
template <typename T, int D> static constexpr int ROW_BYTES = D *(int)sizeof(T);

/* d += a b */
static __device__ __forceinline__ void multiply_add(float d[4], const uint32_t a[4],
                                                    const uint32_t b[2], __half) {
    mma_m16n8k16_f16_f32(d, a, b, d);
}
static __device__ __forceinline__ void multiply_add(float d[4], const uint32_t a[4],
                                                    const uint32_t b[2], __nv_bfloat16) {
    mma_m16n8k16_bf16_f32(d, a, b, d);
}
static __device__ __forceinline__ void multiply_add(float d[4], const uint32_t a[4],
                                                    const uint32_t b[2], float) {
    mma_m16n8k8_tf32_f32(d, a, b, d);
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

/* DEPTH columns of 16 rows as an A fragment: two accumulators side by side, one of TF32. SMALL:
 * they are finite and at most 2^127, or it does not matter that a NaN is lost. */
template <typename T, bool SMALL = false>
static __device__ __forceinline__ void rounded_fragment(uint32_t a[4], const float *sums) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (sizeof(T) == 2) a[i] = rounded_pair(sums[2 * i], sums[2 * i + 1], T());
        else {
            float value = sums[i / 2 + i % 2 * 2];
            a[i] = SMALL ? tf32_bits_of_small(value) : tf32_bits(value);
        }
    }
}

/* Offset of chunk `chunk` of row `row` in a tile, in values. */
template <typename T, int D> static __device__ __forceinline__ int tile_offset(int row, int chunk) {
    return row * D + (chunk ^ row % 8) * CHUNK<T>;
}

/* Starts to copy `rows` (rows of global memory, stride values apart, the first `valid` of which
 * exist) to a tile of ROWS rows; missing rows are filled with zeros. THREADS threads copy. Their
 * offsets are recomputed at each call: kept over a loop, they take registers that the products
 * need. */
template <typename T, int D, int ROWS, int THREADS>
static __device__ __forceinline__ void load_tile(T *tile, const T *rows, int64_t stride,
                                                 int64_t valid) {
    const int chunks = D / CHUNK<T>, rows_at_once = THREADS / chunks;
    static_assert(ROWS % rows_at_once == 0 && rows_at_once % 8 == 0, "chunks stay in their column");
    int thread = reread_thread_index(), row = thread / chunks, chunk = thread % chunks;
    const T *from = opaque(rows + (row * stride + chunk * CHUNK<T>));
    shared_pointer to = shared_pointer_to(tile + tile_offset<T, D>(row, chunk));
#pragma unroll
    for (int i = 0; i < ROWS; i += rows_at_once)
        cp_async_16(to + i * ROW_BYTES<T, D>, from + i * stride, row + i < valid);
}

/* Rounds the chunks that this thread has copied to a tile of fp32 to TF32, in place; tiles of 16
 * bits are operands as they are. Called after the wait for the copy and before the barrier, so that
 * each value is rounded once, not by every warp that reads it. */
template <typename T, int D, int ROWS, int THREADS>
static __device__ __forceinline__ void round_tile(T *tile) {
    if constexpr (sizeof(T) == sizeof(float)) {
        const int chunks = D / CHUNK<T>, rows_at_once = THREADS / chunks;
        int thread = reread_thread_index();
        T *own = tile + tile_offset<T, D>(thread / chunks, thread % chunks);
#pragma unroll
        for (int i = 0; i < ROWS; i += rows_at_once) {
            float4 x = *(const float4 *)(own + i * D);
            *(uint4 *)(own + i * D) =
                make_uint4(tf32_bits(x.x), tf32_bits(x.y), tf32_bits(x.z), tf32_bits(x.w));
        }
    }
}

/* Addresses of a lane's chunks, for ldmatrix to read 16 rows of 32 bytes of a tile: at[i] for bytes
 * from 32 i of a row, from row 0. All other addresses are a constant number of bytes away. */
struct tile_lanes {
    shared_pointer at[4];
};
template <typename T, int D>
static __device__ __forceinline__ struct tile_lanes lane_pointers(const T *tile, int down,
                                                                  int right) {
    struct tile_lanes lanes;
#pragma unroll
    for (int i = 0; i < 4; i++)
        lanes.at[i] = shared_pointer_to(tile + tile_offset<T, D>(down, 2 * i ^ right));
    return lanes;
}
/* row: a multiple of 8; byte: of a row, a multiple of 32. */
template <typename T, int D>
static __device__ __forceinline__ shared_pointer lane_pointer(const struct tile_lanes *lanes,
                                                              int row, int byte) {
    return lanes->at[byte / 32 % 4] + (row * ROW_BYTES<T, D> + byte / 128 * 128);
}

/* Order of the four matrices of 8 rows and a chunk: down the first chunks, then down the next. */
template <typename T, int D>
static __device__ __forceinline__ struct tile_lanes down_then_right(const T *tile) {
    int lane = (int)threadIdx.x % WARP;
    return lane_pointers<T, D>(tile, lane % 16, lane / 16);
}
/* Order along the first 8 rows, then along the next. */
template <typename T, int D>
static __device__ __forceinline__ struct tile_lanes right_then_down(const T *tile) {
    int lane = (int)threadIdx.x % WARP;
    return lane_pointers<T, D>(tile, lane / 16 * 8 + lane % 8, lane / 8 % 2);
}
/* Addresses for fragments_b_trans: in 16 bits down_then_right. ldmatrix does not transpose 32 bits:
 * there a lane reads column lane / 4 of row lane % 4 * 2 and of the next one. The lanes of a warp
 * read 32 different banks. */
struct transposed_lanes {
    struct tile_lanes even, odd; /* odd: in fp32 only */
};
template <typename T, int D>
static __device__ __forceinline__ struct transposed_lanes transposed_pointers(const T *tile) {
    struct transposed_lanes lanes;
    if constexpr (sizeof(T) == 2) lanes.even = down_then_right<T, D>(tile);
    else {
        int lane = (int)threadIdx.x % WARP, row = lane % 4 * 2;
        const T *column = tile + lane / 4 % 4;
        lanes.even = lane_pointers<T, D>(column, row, lane / 16);
        lanes.odd = lane_pointers<T, D>(column, row + 1, lane / 16);
    }
    return lanes;
}

/* A[m, k] from a tile whose rows are m; lanes: down_then_right. Here and below these are constants
 * (or counters of unrolled loops): m and n multiples of 16, k of DEPTH. */
template <typename T, int D>
static __device__ __forceinline__ void fragment_a(uint32_t a[4], const struct tile_lanes *lanes,
                                                  int m, int k) {
    ldmatrix_x4(a, lane_pointer<T, D>(lanes, m, k * (int)sizeof(T)));
}
/* B[k, n], 16 columns, from a tile whose rows are n; lanes: right_then_down. b and b + 2 are the
 * operands of two mma. */
template <typename T, int D>
static __device__ __forceinline__ void fragments_b(uint32_t b[4], const struct tile_lanes *lanes,
                                                   int k, int n) {
    ldmatrix_x4(b, lane_pointer<T, D>(lanes, n, k * (int)sizeof(T)));
}
/* B[k, n], 16 columns, from a tile whose rows are k; lanes: transposed_pointers. */
template <typename T, int D>
static __device__ __forceinline__ void
fragments_b_trans(uint32_t b[4], const struct transposed_lanes *lanes, int k, int n) {
    if constexpr (sizeof(T) == 2) ldmatrix_x4_trans(b, lane_pointer<T, D>(&lanes->even, k, n * 2));
    else
#pragma unroll
        for (int i = 0; i < 4; i++)
            b[i] = load_shared(
                lane_pointer<T, D>(i % 2 ? &lanes->odd : &lanes->even, k, (n + i / 2 * 8) * 4));
}

/* Rounds two neighbours of an accumulator to T, and stores them in row `row` of a tile: columns
 * `right` (lane % 4 * 2) and the next of the 8 from `column` on. */
template <typename T, int D>
static __device__ __forceinline__ void store_pair(T *tile, int row, int column, int right,
                                                  float low, float high) {
    int chunk = column / CHUNK<T> + right / CHUNK<T>;
    T *to = tile + tile_offset<T, D>(row, chunk) + right % CHUNK<T>;
    if constexpr (sizeof(T) == 2) *(uint32_t *)to = rounded_pair(low, high, T());
    else *(float2 *)to = make_float2(low, high);
}

/* Loads a chunk as fp32. */
template <typename T>
static __device__ __forceinline__ void load_chunk(float *values, const T *from) {
    if constexpr (sizeof(T) == 2) load_pack(values, from);
    else {
        float4 chunk = *(const float4 *)from;
        values[0] = chunk.x, values[1] = chunk.y, values[2] = chunk.z, values[3] = chunk.w;
    }
}

/* Sums each column over the warp's rows, of which a lane has added some, and stores them: chunks of
 * VALUES columns, CHUNKS in a row. */
template <int CHUNKS, int VALUES>
static __device__ __forceinline__ void store_column_sums(float *to, float *own) {
    int lane = reread_thread_index() % WARP;
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        for (int other = CHUNKS; other < WARP; other *= 2)
            own[i] += __shfl_xor_sync(0xffffffffu, own[i], other);
    if (lane >= CHUNKS) return;
#pragma unroll
    for (int i = 0; i < VALUES; i += 4)
        *(float4 *)(to + lane * VALUES + i) =
            make_float4(own[i], own[i + 1], own[i + 2], own[i + 3]);
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

/* The same for fp32, too, with heads of 64 or 128. */
#define BY_ANY_TYPE_AND_WIDTH(function, dtype, width, ...)                           \
    do {                                                                             \
        if ((dtype) == DTYPE_F32 && (width) == 64) function<float, 64>(__VA_ARGS__); \
        else if ((dtype) == DTYPE_F32) function<float, 128>(__VA_ARGS__);            \
        else BY_TYPE_AND_ANY_WIDTH(function, dtype, width, __VA_ARGS__);             \
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

/* Number of heads in a group: two tensors of the dtype in some 16 MB of the 40 to 60 of an L2. */
static inline int attention_group(const struct attention_shape *shape, enum dtype dtype,
                                  int64_t heads) {
    int64_t row = 2 * (int64_t)dtype_bytes(dtype) * shape->width;
    int64_t fitting = ((int64_t)16 << 20) / (shape->sequence * row);
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
