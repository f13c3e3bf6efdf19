/* The gradients of layer norm. With d = dout * (weight + weight_offset) and h = (in - mean) * rstd,
 * the gradient of a row is rstd * (d - mean(d) - h * mean(d * h)); those of weight and bias are the
 * column sums of dout * h and dout. The column sums of the result can be computed too: they are the
 * gradient of the bias of the previous addition to the residual stream.
 *
 * Bytes per element: each tensor once in its dtype; for bf16 branches on an fp32 stream 2 + 4 + 4
 * read, 4 + 2 written. The limit is memory bandwidth.
 *
 * A thread processes 4 columns and a block a group of rows, one by one. Asynchronous copies fill
 * two stages of shared memory, so the next row is on its way while one is processed and takes no
 * registers; those left hold the sums over rows until the group ends. The group's sums go to the
 * workspace, and a second kernel adds up the groups. Long or unaligned rows and rare combinations
 * of dtypes take a kernel that reads its elements twice. */
#include "kernels/cuda/amax.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/partials.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/reduce.h"

enum {
    QUAD = 4,   /* columns of a thread: 16 bytes of fp32 */
    STAGES = 2, /* rows of a block in shared memory */
    HALF = WARP / 2,
    NARROW_THREADS = 640, /* two blocks leave 48 registers for each thread */
    WIDE_THREADS = 1024,
    GENERAL_THREADS = 256,
    GROUPS_MAX = 792, /* whole waves on the 132 multiprocessors of a Hopper: one of 6 blocks each
                       * for rows of 768, six of one block each for wide rows */
    GROUP_ROWS_MIN = 16,
};

struct backward {
    struct array din, din_lower, dout, in, dresidual;
    struct array result; /* tensor whose amax and column sums are computed: din_lower, else din */
    float *partials;     /* [groups, sums, C]: dweight and the other sums of each group of rows */
    struct sums sums;    /* dweight, dbias and column_sums, the last two if requested */
    int dbias, column_sums; /* their indices in sums; 0: none */
    const float *mean, *rstd, *weight;
    float weight_offset;
    struct amax *track_amax; /* optional */
    float per_column;        /* 1 / C */
    float per_column_d;      /* the same for mean(d); 0 for RMS norm, which has no mean */
    int64_t rows, columns, group_rows;
};

/* Number of rows in a group, even; depends on the number of rows only. */
static int64_t rows_per_group(int64_t rows) {
    int64_t group_rows = blocks_of(rows, 2 * GROUPS_MAX) * 2;
    return group_rows < GROUP_ROWS_MIN ? (int64_t)GROUP_ROWS_MIN : group_rows;
}

static int64_t groups_of(int64_t rows) {
    return blocks_of(rows, rows_per_group(rows));
}

/* Sum over the 16 lanes of half a warp, in each of them. */
static __device__ __forceinline__ float half_warp_sum(float value) {
    for (int offset = HALF / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* Replaces the sums over the thread's columns by means over the row, in every thread. The lower
 * half of each warp adds up d, the upper half d * h. Calls alternate between two `part` arrays, so
 * one barrier is enough: a thread that refills this one has passed the next call's barrier, which
 * every thread reaches only after reading here. */
template <int WARPS>
static __device__ __forceinline__ void row_means(float *mean_d, float *mean_dh,
                                                 float part[WARPS][2], const struct backward &a) {
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int warps = (int)blockDim.x / WARP, upper = lane / HALF;
    float given = __shfl_xor_sync(0xffffffffu, upper ? *mean_d : *mean_dh, HALF);
    float sum = half_warp_sum((upper ? *mean_dh : *mean_d) + given);
    if (lane % HALF == 0) part[warp][upper] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int first = 0; first < WARPS; first += HALF)
        if (first + lane % HALF < warps) sum += part[first + lane % HALF][upper];
    sum = half_warp_sum(sum) * (upper ? a.per_column : a.per_column_d);
    *mean_d = __shfl_sync(0xffffffffu, sum, 0);
    *mean_dh = __shfl_sync(0xffffffffu, sum, HALF);
}

/* A warp's columns of a row, in shared memory. Each lane reads only what it wrote, so no barrier
 * separates copies from uses. */
template <typename Dout, typename Stream> struct stage {
    struct chunk<Stream, QUAD> in[WARP], dresidual[WARP];
    struct chunk<Dout, QUAD> dout[WARP];
};

template <typename T>
static __device__ __forceinline__ void copy_quad(struct chunk<T, QUAD> *to, const T *from) {
    if (sizeof *to == 16) cp_async_16(to, from);
    else cp_async_8(to, from);
}

/* Starts copies of the lane's columns, from element `at` on. The group of copies is empty for
 * lanes without columns and after the last row. */
template <typename Dout, typename Stream>
static __device__ __forceinline__ void fetch(struct stage<Dout, Stream> *to,
                                             const struct backward &a, int64_t at, bool exists) {
    int lane = (int)threadIdx.x % WARP;
    if (exists) {
        copy_quad(&to->dout[lane], (const Dout *)a.dout.data + at);
        copy_quad(&to->in[lane], (const Stream *)a.in.data + at);
        if (a.dresidual.data)
            copy_quad(&to->dresidual[lane], (const Stream *)a.dresidual.data + at);
    }
    cp_async_commit();
}

/* Sets to 0 what is read but never fetched: lanes without columns, and an absent dresidual. */
template <typename Dout, typename Stream>
static __device__ __forceinline__ void clear(struct stage<Dout, Stream> *to,
                                             const struct backward &a, bool inside) {
    const float zeros[QUAD] = {0};
    int lane = (int)threadIdx.x % WARP;
    if (!inside || !a.dresidual.data) store_chunk<QUAD>((Stream *)&to->dresidual[lane], zeros);
    if (inside) return;
    store_chunk<QUAD>((Dout *)&to->dout[lane], zeros);
    store_chunk<QUAD>((Stream *)&to->in[lane], zeros);
}

/* Sums over the block's rows, of the thread's columns. */
struct own_sums {
    float dweight[QUAD], dbias[QUAD], result[QUAD];
};

/* Reads d and h of the thread's columns, and adds up d and d * h. */
template <typename Dout, typename Stream>
static __device__ __forceinline__ void
read_row(float d[QUAD], float h[QUAD], float *sum_d, float *sum_dh, struct own_sums *sums,
         const struct stage<Dout, Stream> *from, const float weight[QUAD], float mean, float rstd) {
    int lane = (int)threadIdx.x % WARP;
    unpack(d, &from->dout[lane]);
    unpack(h, &from->in[lane]);
    *sum_d = *sum_dh = 0;
    for (int i = 0; i < QUAD; i++) {
        h[i] = (h[i] - mean) * rstd;
        sums->dweight[i] += d[i] * h[i];
        sums->dbias[i] += d[i];
        d[i] *= weight[i];
        *sum_d += d[i];
        *sum_dh += d[i] * h[i];
    }
}

/* Stores the gradient of the thread's columns, from element `at` on. */
template <typename Stream>
static __device__ __forceinline__ void write_row(struct magnitudes *seen, struct own_sums *sums,
                                                 const float din[QUAD], const struct backward &a,
                                                 int64_t at) {
    store_chunk<QUAD>((Stream *)a.din.data + at, din);
    STORAGE_SWITCH(a.result.dtype, Result, {
        if (a.din_lower.data) store_chunk<QUAD>((Result *)a.din_lower.data + at, din);
        if (a.track_amax) track_stored<Result, QUAD>(seen, din);
        if (a.column_sums)
            for (int i = 0; i < QUAD; i++) sums->result[i] += rounded<Result>(din[i]);
    });
}

static __device__ __forceinline__ void store_sums(const struct backward &a, int64_t column,
                                                  const struct own_sums *sums) {
    float *partial = a.partials + blockIdx.x * a.sums.count * a.columns + column;
    store_chunk<QUAD>(partial, sums->dweight);
    if (a.dbias) store_chunk<QUAD>(partial + a.dbias * a.columns, sums->dbias);
    if (a.column_sums) store_chunk<QUAD>(partial + a.column_sums * a.columns, sums->result);
}

template <typename Dout, typename Stream, int THREADS>
static __device__ __forceinline__ void backward_group(const struct backward &a) {
    __shared__ float part[STAGES][THREADS / WARP][2];
    typedef struct stage<Dout, Stream> row_stage;
    DYNAMIC_SHARED(row_stage, shared);
    row_stage *own = shared + (int)threadIdx.x / WARP * STAGES;
    int64_t first = blockIdx.x * a.group_rows;
    int column = (int)threadIdx.x * QUAD;
    int64_t at = first * a.columns + column;
    int rows = (int)(a.rows - first < a.group_rows ? a.rows - first : a.group_rows);
    int lane = (int)threadIdx.x % WARP;
    bool inside = column < a.columns;
    struct magnitudes seen = {0, 0};
    struct own_sums sums = {{0}, {0}, {0}};
    float weight[QUAD] = {0};
    if (inside) load_flat<true, QUAD>(weight, a.weight + column, QUAD);
    if (THREADS == WIDE_THREADS)
        for (int i = 0; i < QUAD; i++) weight[i] += a.weight_offset;
    for (int s = 0; s < STAGES; s++) {
        clear(own + s, a, inside);
        fetch(own + s, a, at + s * a.columns, inside && s < rows);
    }
    float next_mean = a.mean ? a.mean[first] : 0, next_rstd = a.rstd[first];
    for (int row = 0; row < rows; row++) {
        row_stage *stage = own + row % STAGES;
        int64_t next = first + (row + 1 < rows ? row + 1 : row);
        float d[QUAD], h[QUAD], din[QUAD], mean = next_mean, rstd = next_rstd, mean_d, mean_dh;
        next_mean = a.mean ? a.mean[next] : 0, next_rstd = a.rstd[next]; /* in flight until then */
        cp_async_wait<STAGES - 1>();
        read_row(d, h, &mean_d, &mean_dh, &sums, stage, weight, mean, rstd);
        row_means<THREADS / WARP>(&mean_d, &mean_dh, part[row % STAGES], a);
        if (inside) {
            unpack(din, &stage->dresidual[lane]);
            for (int i = 0; i < QUAD; i++) din[i] += rstd * (d[i] - mean_d - h[i] * mean_dh);
            write_row<Stream>(&seen, &sums, din, a, at);
        }
        fetch(stage, a, at + STAGES * a.columns, inside && row + STAGES < rows);
        at += a.columns;
    }
    if (a.track_amax) merge_amax(a.track_amax, seen);
    if (inside) store_sums(a, column, &sums);
}

template <typename Dout, typename Stream>
static __global__ void __launch_bounds__(NARROW_THREADS, 2) backward_kernel(struct backward a) {
    backward_group<Dout, Stream, NARROW_THREADS>(a);
}

/* The same for wider rows, of which a multiprocessor holds one, and for weights with an offset, for
 * which the other kernel has no register left. */
template <typename Dout, typename Stream>
static __global__ void __launch_bounds__(WIDE_THREADS) wide_backward_kernel(struct backward a) {
    backward_group<Dout, Stream, WIDE_THREADS>(a);
}

/* ---- the general kernel */

/* dout and h of the thread's columns of a row. */
static __device__ __forceinline__ void general_read(float *dout, float *h, const struct backward &a,
                                                    int64_t row, int64_t column, int count) {
    float mean = a.mean ? a.mean[row] : 0, rstd = a.rstd[row];
    load_array(dout, a.dout, row * a.columns + column, count);
    load_array(h, a.in, row * a.columns + column, count);
    for (int i = 0; i < PACK; i++) h[i] = i < count ? (h[i] - mean) * rstd : 0;
}

static __device__ __forceinline__ void
general_row(struct magnitudes *seen, const struct backward &a, int64_t row, float *dweight) {
    const int64_t columns = a.columns, step = GENERAL_THREADS * PACK;
    float dout[PACK], h[PACK], din[PACK], more[PACK] = {0}, sum_d = 0, sum_dh = 0;
    for (int64_t c = threadIdx.x * PACK; c < columns; c += step) {
        int count = columns_from(c, columns);
        general_read(dout, h, a, row, c, count);
        for (int i = 0; i < PACK; i++) {
            if (i >= count) continue;
            dweight[c + i] += dout[i] * h[i];
            if (a.dbias) dweight[a.dbias * columns + c + i] += dout[i];
            sum_d += dout[i] * (a.weight[c + i] + a.weight_offset);
            sum_dh += dout[i] * (a.weight[c + i] + a.weight_offset) * h[i];
        }
    }
    float mean_d = block_sum<GENERAL_THREADS>(sum_d) * a.per_column_d;
    float mean_dh = block_sum<GENERAL_THREADS>(sum_dh) * a.per_column;
    for (int64_t c = threadIdx.x * PACK; c < columns; c += step) {
        int count = columns_from(c, columns);
        general_read(dout, h, a, row, c, count);
        if (a.dresidual.data) load_array(more, a.dresidual, row * columns + c, count);
        for (int i = 0; i < PACK; i++) {
            float d = i < count ? dout[i] * (a.weight[c + i] + a.weight_offset) : 0;
            din[i] = a.rstd[row] * (d - mean_d - h[i] * mean_dh) + more[i];
        }
        store_array(a.din, row * columns + c, din, count);
        if (a.din_lower.data) store_array(a.din_lower, row * columns + c, din, count);
        if (a.track_amax) track_array(seen, a.result, din, count);
        if (a.column_sums)
            add_as_stored(dweight + a.column_sums * columns + c, a.result, din, count);
    }
}

static __global__ void __launch_bounds__(GENERAL_THREADS, 3)
    general_backward_kernel(struct backward a) {
    int64_t group = blockIdx.x, first = group * a.group_rows;
    int64_t last = first + a.group_rows < a.rows ? first + a.group_rows : a.rows;
    float *partial = a.partials + group * a.sums.count * a.columns;
    for (int64_t c = threadIdx.x * PACK; c < a.columns; c += GENERAL_THREADS * PACK)
        for (int i = 0; i < columns_from(c, a.columns); i++)
            for (int sum = 0; sum < a.sums.count; sum++) partial[sum * a.columns + c + i] = 0;
    struct magnitudes seen = {0, 0};
    for (int64_t row = first; row < last; row++) general_row(&seen, a, row, partial);
    if (a.track_amax) merge_amax(a.track_amax, seen);
}

/* ---- on the host */

/* Number of threads of a block in which each owns a quad of columns. */
static int64_t threads_for(const struct backward *a) {
    return blocks_of(a->columns, QUAD * WARP) * WARP;
}

/* Bytes of a block's stages. */
static size_t stage_bytes(const struct backward *a) {
    size_t quad = QUAD * (dtype_bytes(a->dout.dtype) + 2 * dtype_bytes(a->in.dtype));
    return STAGES * (size_t)threads_for(a) * quad;
}

template <typename Dout, typename Stream>
static void launch_packed(struct backend *be, const struct backward *a) {
    const struct cuda_state *cuda = cuda_state(be);
    unsigned groups = (unsigned)groups_of(a->rows), threads = (unsigned)threads_for(a);
    size_t shared = stage_bytes(a);
    bool wide = threads > NARROW_THREADS || a->weight_offset != 0;
    const void *kernel = wide ? (const void *)wide_backward_kernel<Dout, Stream>
                              : (const void *)backward_kernel<Dout, Stream>;
    if (!cuda_shared(be, kernel, shared, "layernorm_backward")) return;
    if (wide)
        LAUNCH((wide_backward_kernel<Dout, Stream>), groups, threads, shared, cuda->compute, *a);
    else LAUNCH((backward_kernel<Dout, Stream>), groups, threads, shared, cuda->compute, *a);
}

static void launch_backward(struct backend *be, const struct backward *a, bool packed) {
    const size_t reserved = 1024; /* most bytes of other shared memory of the kernels */
    bool fits =
        threads_for(a) <= WIDE_THREADS && stage_bytes(a) + reserved <= cuda_state(be)->shared_bytes;
    if (packed && fits)
        STORAGE_SWITCH(a->dout.dtype, Dout,
                       STORAGE_SWITCH(a->in.dtype, Stream, launch_packed<Dout, Stream>(be, a)));
    else
        LAUNCH(general_backward_kernel, (unsigned)groups_of(a->rows), GENERAL_THREADS, 0,
               cuda_state(be)->compute, *a);
}

size_t cuda_layernorm_backward_scratch(struct backend *be,
                                       const struct layernorm_backward_args *args) {
    (void)be;
    int64_t sums = 1 + (args->dbias != NULL) + (args->column_sums != NULL);
    int64_t floats = groups_of(tensor_rows(args->din)) * sums * tensor_columns(args->din);
    return (size_t)floats * sizeof(float);
}

void cuda_layernorm_backward(struct backend *be, const struct layernorm_backward_args *args) {
    struct backward a = {
        .din = array_of(args->din),
        .din_lower = array_of(args->din_lower),
        .dout = array_of(args->dout),
        .in = array_of(args->in),
        .dresidual = array_of(args->dresidual),
        .result = array_of(args->din_lower ? args->din_lower : args->din),
        .partials = (float *)backend_workspace(be, cuda_layernorm_backward_scratch(be, args)),
        .sums = sums_of(args->dweight),
        .dbias = args->dbias ? 1 : 0,
        .column_sums = args->column_sums ? 1 + (args->dbias != NULL) : 0,
        .mean = args->mean,
        .rstd = args->rstd,
        .weight = (const float *)args->weight->data,
        .weight_offset = args->weight_offset,
        .track_amax = args->track_amax,
        .per_column = 1.0f / (float)tensor_columns(args->din),
        .per_column_d = args->mean ? 1.0f / (float)tensor_columns(args->din) : 0,
        .rows = tensor_rows(args->din),
        .columns = tensor_columns(args->din),
        .group_rows = rows_per_group(tensor_rows(args->din)),
    };
    assert(args->weight->dtype == DTYPE_F32 && !args->mean == !args->dbias);
    sums_add(&a.sums, args->dbias);
    sums_add(&a.sums, args->column_sums);
    if (a.rows == 0) return;
    bool packed = a.din.packed && a.din_lower.packed && a.dout.packed && a.in.packed &&
                  a.dresidual.packed && rows_are_packed(args->weight);
    bool stream =
        a.din.dtype == a.in.dtype && (!args->dresidual || a.dresidual.dtype == a.in.dtype);
    launch_backward(be, &a, packed && stream);
    add_partials(be, &a.sums, a.partials, groups_of(a.rows));
    cuda_launched(be, "layernorm_backward");
}
