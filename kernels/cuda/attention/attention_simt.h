/* Tiles in shared memory and products of them, for attention in fp32 by plain threads.
 *
 * Every kernel keeps a tile of A rows, walks over tiles of B rows, and needs two products:
 *
 *     scores      s[A, B] += a[A, D] b[B, D]'     rows of both are read along D
 *     accumulate  sum[A, W] += p[A, B] x[B, W]    p went through shared memory
 *
 * W is D rounded up to a width that kernels are instantiated for; tiles are padded with zeros. The
 * 128 threads of a block are 16 row groups times 8 column groups. A thread has the rows g, g + 16,
 * ... of its row group g, the columns c, c + 8, ... of scores, and the quads (4 columns) c, c + 8,
 * ... of a sum. It reads shared memory in quads: 16 bytes, each used for 4 to 32 multiplications.
 *
 * In a lane number, bits 1 to 3 are the column group, bits 0 and 4 the low bits of the row group.
 * Reads of 16 bytes are served half a warp at a time if neighbours read the same address. A half
 * reads 8 different quads of columns, or 2 of rows, at once. Quad d of row r is stored at index d ^
 * (r % 8), so that these are in different banks. Rows 8 apart use the same permutation, so the
 * offsets between a thread's rows and columns are compile-time constants.
 *
 * The rows of a row group are read and written by one warp only, so data that goes through p needs
 * no barrier wider than a warp. */
#pragma once

#include <math.h>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/storage.h"

enum { SIMT_THREADS = 128, ROW_GROUPS = 16, COLUMN_GROUPS = 8, QUAD = 4, SIMT_WIDTH_MAX = 256 };

/* A tensor [B, T, stride]. The dtype is known at run time only. It matters where tiles are loaded
 * and stored, for which a branch costs nothing, and any dtypes can be combined. */
struct simt_tensor {
    void *data;
    int64_t stride;
    enum dtype dtype;
    bool packed; /* heads start at multiples of 16 bytes and are whole packs */
};

struct simt_problem {
    struct simt_tensor qkv, out, dqkv, dout;
    float *lse, *delta;                               /* [B, H, T] */
    const int32_t *first_keys;                        /* [B, T], or NULL */
    int length, heads, kv_heads, group, width, tiles; /* group: H / H_kv */
    float scale, inner;                               /* as in struct attention_score */
    float exponent_scale;                             /* scores to powers of 2 */
};

/* Rows of one head: row t starts at element first + t * stride. */
struct simt_rows {
    struct simt_tensor tensor;
    int64_t first;
};

/* Rows in tensors that begin with the query heads; head: index in B * H. */
static __device__ __forceinline__ struct simt_rows
query_rows_of(const struct simt_problem *problem, struct simt_tensor tensor, int head) {
    int batch = head / problem->heads;
    struct simt_rows rows = {tensor, batch * (int64_t)problem->length * tensor.stride +
                                         head % problem->heads * problem->width};
    return rows;
}

/* Rows of keys in qkv and dqkv; kv_head: index in B * H_kv. */
static __device__ __forceinline__ struct simt_rows
key_rows_of(const struct simt_problem *problem, struct simt_tensor tensor, int kv_head) {
    int batch = kv_head / problem->kv_heads, column = problem->heads + kv_head % problem->kv_heads;
    struct simt_rows rows = {tensor, batch * (int64_t)problem->length * tensor.stride +
                                         column * problem->width};
    return rows;
}
static __device__ __forceinline__ struct simt_rows values_after(const struct simt_problem *problem,
                                                                struct simt_rows keys) {
    keys.first += problem->kv_heads * problem->width;
    return keys;
}

/* Returns the first key of query t of a sequence; 0 for rows beyond its length. */
static __device__ __forceinline__ int first_key_of(const struct simt_problem *problem, int batch,
                                                   int t) {
    if (!problem->first_keys || t >= problem->length) return 0;
    return problem->first_keys[(int64_t)batch * problem->length + t];
}

static __device__ __forceinline__ int row_group() {
    unsigned lane = threadIdx.x % WARP;
    return (int)(threadIdx.x / WARP * 4 + lane % 2 + lane / 16 * 2);
}
static __device__ __forceinline__ int column_group() {
    return (int)(threadIdx.x % 16 / 2);
}

/* Maximum and sum over the column groups of a row. */
static __device__ __forceinline__ float row_max(float value) {
    for (int offset = 2; offset < 16; offset *= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}
static __device__ __forceinline__ float row_sum(float value) {
    for (int offset = 2; offset < 16; offset *= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* Offset of a quad in a tile of rows of W values. */
template <int W> static __device__ __forceinline__ int quad_at(int row, int quad) {
    const int flips = W / QUAD < 8 ? W / QUAD : 8;
    return row * W + (quad ^ (row & (flips - 1))) * QUAD;
}

static __device__ __forceinline__ void quad_read(float values[QUAD], const float *from) {
    float4 quad = *(const float4 *)from;
    values[0] = quad.x, values[1] = quad.y, values[2] = quad.z, values[3] = quad.w;
}
static __device__ __forceinline__ void quad_write(float *to, const float values[QUAD]) {
    *(float4 *)to = make_float4(values[0], values[1], values[2], values[3]);
}

/* ---- between memory and tiles */

/* A thread has one pack of columns, and rows that lie rows_at_once apart. */
template <typename T, int W, int ROWS, bool PACKED>
static __device__ __forceinline__ void tile_fill(float *tile, const T *from, int64_t stride,
                                                 int rows, int width) {
    const int packs = W / PACK, rows_at_once = SIMT_THREADS / packs;
    static_assert(ROWS % rows_at_once == 0, "all threads have the same");
    int first = (int)(threadIdx.x / packs), d = (int)(threadIdx.x % packs * PACK);
    from += first * stride + d;
    rows = d < width ? rows - first : 0;
#pragma unroll(PACKED ? 4 : 1)
    for (int row = 0; row < ROWS; row += rows_at_once) {
        float values[PACK] = {0};
        if (PACKED && row < rows) load_pack(values, from + row * stride);
        if (!PACKED && row < rows) load_some(values, from + row * stride, width - d);
        quad_write(tile + quad_at<W>(first + row, d / QUAD), values);
        quad_write(tile + quad_at<W>(first + row, d / QUAD + 1), values + QUAD);
    }
}

/* tile = rows from begin on of a head, as fp32; zeros beyond the length or the width. */
template <int W, int ROWS>
static __device__ __forceinline__ void tile_load(float *tile, const struct simt_rows *rows,
                                                 int begin, const struct simt_problem *problem) {
    int64_t stride = rows->tensor.stride, first = rows->first + begin * stride;
    int count = problem->length - begin, width = problem->width;
    STORAGE_SWITCH(rows->tensor.dtype, T, {
        const T *from = (const T *)rows->tensor.data + first;
        if (rows->tensor.packed) tile_fill<T, W, ROWS, true>(tile, from, stride, count, width);
        else tile_fill<T, W, ROWS, false>(tile, from, stride, count, width);
    });
}

/* Starts the same; the thread's copies are done after cp_async_wait. Only packed fp32 is copied in
 * the meantime, anything else at once. */
template <int W, int ROWS>
static __device__ __forceinline__ void tile_fetch(float *tile, const struct simt_rows *rows,
                                                  int begin, const struct simt_problem *problem) {
    const int quads = W / QUAD, rows_at_once = SIMT_THREADS / quads;
    static_assert(ROWS % rows_at_once == 0, "all threads have the same");
    if (rows->tensor.dtype != DTYPE_F32 || !rows->tensor.packed)
        return tile_load<W, ROWS>(tile, rows, begin, problem);
    int thread = reread_thread_index(), first = thread / quads, quad = thread % quads;
    int count = quad * QUAD < problem->width ? problem->length - begin - first : 0;
    const float *from = (const float *)rows->tensor.data + rows->first +
                        (begin + first) * rows->tensor.stride + quad * QUAD;
#pragma unroll 4
    for (int row = 0; row < ROWS; row += rows_at_once) {
        cp_async_16(tile + quad_at<W>(first + row, quad), from, row < count);
        from += rows_at_once * rows->tensor.stride;
    }
}

/* Stores the sums times factor[row] as rows from begin on of a head, coalesced and rounded once,
 * through a tile. No thread may still read the tile. */
template <int W, int A>
static __device__ __forceinline__ void
sums_store(float *tile, const struct simt_rows *rows, int begin, const struct simt_problem *problem,
           const float sum[A / ROW_GROUPS][W / 32][QUAD], const float factor[A / ROW_GROUPS]) {
#pragma unroll
    for (int i = 0; i < A / ROW_GROUPS; i++)
#pragma unroll
        for (int j = 0; j < W / 32; j++) {
            float values[QUAD];
            for (int e = 0; e < QUAD; e++) values[e] = sum[i][j][e] * factor[i];
            int row = row_group() + i * ROW_GROUPS, quad = column_group() + j * COLUMN_GROUPS;
            quad_write(tile + quad_at<W>(row, quad), values);
        }
    __syncthreads();
    int count = problem->length - begin < A ? problem->length - begin : A;
    STORAGE_SWITCH(rows->tensor.dtype, T, {
        T *to = (T *)rows->tensor.data + rows->first + begin * rows->tensor.stride;
        for (int at = (int)threadIdx.x; at < count * (W / PACK); at += SIMT_THREADS) {
            int row = at / (W / PACK), d = at % (W / PACK) * PACK;
            float values[PACK];
            if (d >= problem->width) continue;
            quad_read(values, tile + quad_at<W>(row, d / QUAD));
            quad_read(values + QUAD, tile + quad_at<W>(row, d / QUAD + 1));
            T *destination = to + row * rows->tensor.stride + d;
            if (rows->tensor.packed) store_pack(destination, values);
            else store_some(destination, values, problem->width - d);
        }
    });
    __syncthreads();
}

/* ---- products */

/* s = a b', where a tile row has `width` values, and zeros up to a multiple of 16. */
template <int W, int A, int B>
static __device__ __forceinline__ void scores(float s[A / ROW_GROUPS][B / COLUMN_GROUPS],
                                              const float *a, const float *b, int width) {
    const int rows = A / ROW_GROUPS, columns = B / COLUMN_GROUPS;
    const float *a_row = a + row_group() * W, *b_row = b + column_group() * W;
    int a_flip = row_group() % 8, b_flip = column_group();
#pragma unroll
    for (int i = 0; i < rows; i++)
#pragma unroll
        for (int j = 0; j < columns; j++) s[i][j] = 0;
#pragma unroll 1
    for (int begin = 0; begin * QUAD < width; begin += 4)
#pragma unroll
        for (int d = begin; d < begin + 4; d++) {
            float left[rows][QUAD], right[QUAD];
#pragma unroll
            for (int i = 0; i < rows; i++)
                quad_read(left[i], a_row + i * ROW_GROUPS * W + (d ^ a_flip) * QUAD);
#pragma unroll
            for (int j = 0; j < columns; j++) {
                quad_read(right, b_row + j * COLUMN_GROUPS * W + (d ^ b_flip) * QUAD);
#pragma unroll
                for (int e = 0; e < QUAD; e++)
#pragma unroll
                    for (int i = 0; i < rows; i++) s[i][j] += left[i][e] * right[e];
            }
        }
}

/* Replaces scores by their tanh, with a soft cap. */
template <int ROWS, int COLUMNS>
static __device__ __forceinline__ void cap_scores(float s[ROWS][COLUMNS],
                                                  const struct simt_problem *problem) {
    if (problem->inner == 0) return;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) s[i][j] = tanhf(s[i][j] * problem->inner);
}

/* Stores s for accumulate, as a tile of A rows of B values. */
template <int A, int B>
static __device__ __forceinline__ void
scores_share(float *p, const float s[A / ROW_GROUPS][B / COLUMN_GROUPS]) {
    __syncwarp(); /* the previous contents have been read */
#pragma unroll
    for (int j = 0; j < B / COLUMN_GROUPS; j++) {
        int column = column_group() + j * COLUMN_GROUPS;
        float *to = p + quad_at<B>(row_group(), column / QUAD) + column % QUAD;
#pragma unroll
        for (int i = 0; i < A / ROW_GROUPS; i++) to[i * ROW_GROUPS * B] = s[i][j];
    }
    __syncwarp();
}

/* sum += p x. From W = 64 on, 4 columns of p are at least 128 multiplications of a thread:
 * prefetching the next four would only take registers. */
template <int W, int A, int B>
static __device__ __forceinline__ void accumulate(float sum[A / ROW_GROUPS][W / 32][QUAD],
                                                  const float *p, const float *x) {
    const int rows = A / ROW_GROUPS, quads = W / 32;
#pragma unroll(W > 32 ? 1 : 2)
    for (int b = 0; b < B; b += QUAD) {
        float left[rows][QUAD], right[QUAD];
#pragma unroll
        for (int i = 0; i < rows; i++)
            quad_read(left[i], p + quad_at<B>(row_group(), b / QUAD) + i * ROW_GROUPS * B);
#pragma unroll
        for (int e = 0; e < QUAD; e++)
#pragma unroll
            for (int j = 0; j < quads; j++) {
                quad_read(right, x + quad_at<W>(b + e, column_group() + j * COLUMN_GROUPS));
#pragma unroll
                for (int i = 0; i < rows; i++)
#pragma unroll
                    for (int f = 0; f < QUAD; f++) sum[i][j][f] += left[i][e] * right[f];
            }
    }
}

template <int W, int A>
static __device__ __forceinline__ void sums_clear(float sum[A / ROW_GROUPS][W / 32][QUAD]) {
#pragma unroll
    for (int i = 0; i < A / ROW_GROUPS; i++)
#pragma unroll
        for (int j = 0; j < W / 32; j++)
#pragma unroll
            for (int e = 0; e < QUAD; e++) sum[i][j][e] = 0;
}

/* ---- on the host */

static inline struct simt_tensor simt_tensor(const struct tensor *tensor,
                                             const struct attention_shape *shape) {
    bool packed = (uintptr_t)tensor->data % 16 == 0 && shape->width % PACK == 0;
    struct simt_tensor result = {tensor->data, tensor_columns(tensor), tensor->dtype, packed};
    return result;
}

static inline struct simt_problem simt_problem(const struct attention_shape *shape,
                                               struct attention_score score) {
    struct simt_problem problem;
    memset(&problem, 0, sizeof problem);
    problem.length = (int)shape->sequence;
    problem.heads = (int)shape->heads;
    problem.kv_heads = (int)shape->kv_heads;
    problem.group = (int)(shape->heads / shape->kv_heads);
    problem.width = (int)shape->width;
    problem.scale = score.scale;
    problem.inner = score.inner;
    problem.exponent_scale = (float)(M_LOG2E / score.divisor);
    return problem;
}
