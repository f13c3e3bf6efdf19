/* The gradients of layer norm. With d = dout * weight and h = (in - mean) * rstd, the gradient of a
 * row is rstd * (d - mean(d) - h * mean(d * h)); those of weight and bias are the column sums of
 * dout * h and dout. The column sums of the result can be computed too: they are the gradient of
 * the bias of the previous addition to the residual stream.
 *
 * Bytes per element: each tensor once in its dtype; for bf16 branches on an fp32 stream 2 + 4 + 4
 * read, 4 + 2 written. The limit is memory bandwidth.
 *
 * A thread processes 8 columns and a block a group of rows, two at a time, so the sums over rows
 * stay in registers until the group ends, and one barrier serves two rows. The group's sums go to
 * the workspace, and a second kernel adds up the groups. Long or unaligned rows and rare
 * combinations of dtypes take a kernel that reads its elements twice. */
#include "kernels/cuda/amax.h"
#include "kernels/cuda/partials.h"
#include "kernels/cuda/reduce.h"

enum {
    ROWS = 2,
    THREADS_MAX = 512,
    WARPS_MAX = THREADS_MAX / WARP,
    GENERAL_THREADS = 256,
    GROUPS_MAX = 1024,
    GROUP_ROWS_MIN = 8 * ROWS,
};

struct backward {
    struct array din, din_lower, dout, in, dresidual;
    struct array result; /* tensor whose amax and column sums are computed: din_lower, else din */
    float *partials;     /* [groups, sums, C]: dweight and the other sums of each group of rows */
    struct sums sums;    /* dweight, dbias and column_sums, the last two if requested */
    int dbias, column_sums; /* their indices in sums; 0: none */
    const float *mean, *rstd, *weight;
    struct amax *track_amax; /* optional */
    float per_column;        /* 1 / C */
    float per_column_d;      /* the same for mean(d); 0 for RMS norm, which has no mean */
    int64_t rows, columns, group_rows;
};

/* Number of rows in a group; depends on the number of rows only. */
static int64_t rows_per_group(int64_t rows) {
    int64_t group_rows = blocks_of(blocks_of(rows, GROUPS_MAX), ROWS) * ROWS;
    return group_rows < GROUP_ROWS_MIN ? (int64_t)GROUP_ROWS_MIN : group_rows;
}

static int64_t groups_of(int64_t rows) {
    return blocks_of(rows, rows_per_group(rows));
}

/* Means over each row of d and of d * h, in every thread. Calls alternate between two `part`
 * arrays, so one barrier is enough: a thread that refills this one has passed the next call's
 * barrier, which every thread reaches only after reading here. */
static __device__ __forceinline__ void row_means(float mean_d[ROWS], float mean_dh[ROWS],
                                                 float part[2 * ROWS][WARPS_MAX],
                                                 float per_column_d, float per_column) {
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    for (int r = 0; r < ROWS; r++) {
        float sum_d = warp_sum(mean_d[r]), sum_dh = warp_sum(mean_dh[r]);
        if (lane == 0) part[2 * r][warp] = sum_d, part[2 * r + 1][warp] = sum_dh;
    }
    __syncthreads();
    for (int r = 0; r < ROWS; r++) mean_d[r] = mean_dh[r] = 0;
    for (int w = 0; w < (int)blockDim.x / WARP; w++)
        for (int r = 0; r < ROWS; r++)
            mean_d[r] += part[2 * r][w], mean_dh[r] += part[2 * r + 1][w];
    for (int r = 0; r < ROWS; r++) mean_d[r] *= per_column_d, mean_dh[r] *= per_column;
}

/* Up to ROWS rows of the thread's columns. */
struct rows {
    float dout[ROWS][PACK]; /* later d */
    float h[ROWS][PACK];
    float dresidual[ROWS][PACK];
    float rstd[ROWS];
};

/* All loads come first, so that they are in flight together. Missing rows are read from the first
 * row, which avoids a branch, and get dout 0. */
template <typename Dout, typename Stream>
static __device__ __forceinline__ void read_rows(struct rows *x, const struct backward &a,
                                                 int64_t first, int64_t column, int rows) {
    float mean[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int64_t row = first + (r < rows ? r : 0), at = row * a.columns + column;
        mean[r] = a.mean ? a.mean[row] : 0, x->rstd[r] = a.rstd[row];
        load_pack(x->dout[r], (const Dout *)a.dout.data + at);
        load_pack(x->h[r], (const Stream *)a.in.data + at);
        if (a.dresidual.data) load_pack(x->dresidual[r], (const Stream *)a.dresidual.data + at);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < PACK; i++) {
            x->h[r][i] = (x->h[r][i] - mean[r]) * x->rstd[r];
            if (r >= rows) x->dout[r][i] = 0;
        }
    }
}

template <typename Stream>
static __device__ __forceinline__ void
write_rows(struct magnitudes *seen, struct rows *x, const float mean_d[ROWS],
           const float mean_dh[ROWS], float own[PACK], const struct backward &a, int64_t at,
           int rows, int left) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= rows) continue;
        float din[PACK];
        for (int i = 0; i < PACK; i++) {
            din[i] = x->rstd[r] * (x->dout[r][i] - mean_d[r] - x->h[r][i] * mean_dh[r]);
            din[i] += x->dresidual[r][i];
        }
        store_neighbours((Stream *)a.din.data + at + r * a.columns, left, din);
        if (left <= 0) continue;
        if (a.din_lower.data)
            STORAGE_SWITCH(a.din_lower.dtype, Lower,
                           store_pack((Lower *)a.din_lower.data + at + r * a.columns, din));
        if (a.track_amax) track_array(seen, a.result, din, PACK);
        if (a.column_sums) add_as_stored(own, a.result, din, PACK);
    }
}

template <typename Dout, typename Stream>
static __global__ void __launch_bounds__(THREADS_MAX) backward_kernel(struct backward a) {
    __shared__ float part[2][2 * ROWS][WARPS_MAX];
    int64_t group = blockIdx.x, column = (int64_t)threadIdx.x * PACK;
    int64_t first = group * a.group_rows;
    int64_t last = first + a.group_rows < a.rows ? first + a.group_rows : a.rows;
    int left = (int)(a.columns - column);
    bool inside = left > 0;
    struct magnitudes seen = {0, 0};
    float dweight[PACK] = {0}, dbias[PACK] = {0}, own[PACK] = {0};
    for (int64_t row = first; row < last; row += ROWS) {
        int rows = last - row < ROWS ? (int)(last - row) : (int)ROWS;
        struct rows x = {{{0}}, {{0}}, {{0}}, {0}};
        float mean_d[ROWS] = {0}, mean_dh[ROWS] = {0}, weight[PACK] = {0};
        if (inside)
            load_pack(weight, a.weight + column); /* reloaded for each row: registers are few */
        if (inside) read_rows<Dout, Stream>(&x, a, row, column, rows);
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < PACK; i++) {
                dweight[i] += x.dout[r][i] * x.h[r][i];
                dbias[i] += x.dout[r][i];
                x.dout[r][i] *= weight[i];
                mean_d[r] += x.dout[r][i];
                mean_dh[r] += x.dout[r][i] * x.h[r][i];
            }
        }
        row_means(mean_d, mean_dh, part[(row - first) / ROWS % 2], a.per_column_d, a.per_column);
        write_rows<Stream>(&seen, &x, mean_d, mean_dh, own, a, row * a.columns + column, rows,
                           left);
    }
    if (a.track_amax) merge_amax(a.track_amax, seen);
    if (!inside) return;
    float *partial = a.partials + group * a.sums.count * a.columns + column;
    store_pack(partial, dweight);
    if (a.dbias) store_pack(partial + a.dbias * a.columns, dbias);
    if (a.column_sums) store_pack(partial + a.column_sums * a.columns, own);
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
            sum_d += dout[i] * a.weight[c + i];
            sum_dh += dout[i] * a.weight[c + i] * h[i];
        }
    }
    float mean_d = block_sum<GENERAL_THREADS>(sum_d) * a.per_column_d;
    float mean_dh = block_sum<GENERAL_THREADS>(sum_dh) * a.per_column;
    for (int64_t c = threadIdx.x * PACK; c < columns; c += step) {
        int count = columns_from(c, columns);
        general_read(dout, h, a, row, c, count);
        if (a.dresidual.data) load_array(more, a.dresidual, row * columns + c, count);
        for (int i = 0; i < PACK; i++) {
            float d = i < count ? dout[i] * a.weight[c + i] : 0;
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

static void launch_backward(struct backend *be, const struct backward *a, bool fast) {
    unsigned groups = (unsigned)groups_of(a->rows);
    unsigned threads = threads_for_columns(a->columns, THREADS_MAX);
    if (fast)
        STORAGE_SWITCH(a->dout.dtype, Dout,
                       STORAGE_SWITCH(a->in.dtype, Stream,
                                      LAUNCH((backward_kernel<Dout, Stream>), groups, threads, 0,
                                             cuda_state(be)->compute, *a)));
    else LAUNCH(general_backward_kernel, groups, GENERAL_THREADS, 0, cuda_state(be)->compute, *a);
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
    launch_backward(be, &a, packed && stream && a.columns <= (int64_t)THREADS_MAX * PACK);
    add_partials(be, &a.sums, a.partials, groups_of(a.rows));
    cuda_launched(be, "layernorm_backward");
}
