/* Layer norm, and the addition to the residual stream before it.
 *
 * Bytes per element: each tensor once in its dtype; for a bf16 branch on an fp32 stream 2 + 4 read,
 * 4 + 2 written. The limit is memory bandwidth.
 *
 * A thread processes 8 columns, a block whole rows, four at a time, so weight and bias are read
 * once for four rows, loads of all four are in flight together, and the rows stay in registers
 * between the two passes that mean and variance take. Rows too long for that, rows whose packs are
 * not aligned, and other rare cases take a kernel that rereads its elements in each pass, from the
 * caches. */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/amax.h"
#include "kernels/cuda/reduce.h"

enum {
    ROWS = 4,
    THREADS_MAX = 512, /* leaves 128 registers for each thread */
    WARPS_MAX = THREADS_MAX / WARP,
    GENERAL_THREADS = 256,
};

/* Arguments. x is the normalized input; without a residual, `in` is the stream. With more than 128
 * bytes nvcc 13.0 takes 12 more registers, so weight_offset is an argument of its own. */
struct forward {
    struct array out, sum, stream, branch;
    float *mean, *rstd;
    const float *weight, *bias;
    struct amax *track_amax;
    int64_t rows, columns;
    float per_column, epsilon; /* per_column: 1 / C */
};

/* Sums over each row of `values`, in every thread. `part` must not have been read since the last
 * barrier. */
static __device__ __forceinline__ void row_sums(float sums[ROWS], const float values[ROWS],
                                                float part[ROWS][WARPS_MAX]) {
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    for (int r = 0; r < ROWS; r++) {
        float sum = warp_sum(values[r]);
        if (lane == 0) part[r][warp] = sum;
    }
    __syncthreads();
    for (int r = 0; r < ROWS; r++) sums[r] = 0;
    for (int w = 0; w < (int)blockDim.x / WARP; w++)
        for (int r = 0; r < ROWS; r++) sums[r] += part[r][w];
}

/* Reads the thread's columns of up to ROWS rows, adds the branch, and stores the sum. The rounded
 * sum is normalized, because the backward pass reads that. */
template <typename Branch, typename Stream>
static __device__ __forceinline__ void read_rows(float x[ROWS][PACK], const struct forward &a,
                                                 int64_t at, int rows, int left) {
    const Stream *stream = (const Stream *)a.stream.data + at;
    const Branch *branch = (const Branch *)a.branch.data + at;
    float more[ROWS][PACK] = {{0}};
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (r < rows && left > 0) load_pack(x[r], stream + r * a.columns);
    if (!a.branch.data) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (r < rows && left > 0) load_pack(more[r], branch + r * a.columns);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < PACK; i++) x[r][i] = rounded<Stream>(x[r][i] + more[r][i]);
        if (r < rows) store_neighbours((Stream *)a.sum.data + at + r * a.columns, left, x[r]);
    }
}

/* mean (0 for RMS norm) and rstd of each row. Two passes: the mean is known before squares are
 * summed, so nothing cancels. Threads without columns add nothing. */
static __device__ __forceinline__ void statistics(float mean[ROWS], float rstd[ROWS],
                                                  const float x[ROWS][PACK],
                                                  const struct forward &a, bool inside) {
    __shared__ float part[2][ROWS][WARPS_MAX];
    float sum[ROWS], square[ROWS];
    for (int r = 0; r < ROWS; r++) {
        sum[r] = 0;
        for (int i = 0; i < PACK; i++) sum[r] += x[r][i];
    }
    if (a.mean) row_sums(mean, sum, part[0]);
    else
        for (int r = 0; r < ROWS; r++) mean[r] = 0;
    for (int r = 0; r < ROWS; r++) {
        mean[r] *= a.per_column;
        square[r] = 0;
        for (int i = 0; i < PACK; i++) square[r] += (x[r][i] - mean[r]) * (x[r][i] - mean[r]);
        if (!inside) square[r] = 0;
    }
    row_sums(rstd, square, part[1]);
    for (int r = 0; r < ROWS; r++) rstd[r] = 1.0f / sqrtf(rstd[r] * a.per_column + a.epsilon);
}

template <typename Out, typename Branch, typename Stream>
static __global__ void __launch_bounds__(THREADS_MAX, 1)
    forward_kernel(struct forward a, float weight_offset) {
    int64_t first = (int64_t)blockIdx.x * ROWS, column = (int64_t)threadIdx.x * PACK;
    int rows = a.rows - first < ROWS ? (int)(a.rows - first) : (int)ROWS;
    int left = (int)(a.columns - column);
    bool inside = left > 0;
    float x[ROWS][PACK] = {{0}}, mean[ROWS], rstd[ROWS];
    read_rows<Branch, Stream>(x, a, first * a.columns + column, rows, left);
    statistics(mean, rstd, x, a, inside);
    if (threadIdx.x == 0) {
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (r < rows) {
                if (a.mean) a.mean[first + r] = mean[r];
                a.rstd[first + r] = rstd[r];
            }
    }
    struct magnitudes own = {0, 0};
    float weight[PACK] = {0}, bias[PACK] = {0};
    if (inside) load_pack(weight, a.weight + column);
    if (inside && a.bias) load_pack(bias, a.bias + column);
    for (int i = 0; i < PACK; i++) weight[i] += weight_offset;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < PACK; i++)
            x[r][i] = (x[r][i] - mean[r]) * rstd[r] * weight[i] + bias[i];
        if (r >= rows) continue;
        store_neighbours((Out *)a.out.data + (first + r) * a.columns + column, left, x[r]);
        if (a.track_amax && inside) track_stored<Out, PACK>(&own, x[r]);
    }
    if (a.track_amax) merge_amax(a.track_amax, own);
}

/* A block per row. In later passes each thread reads only elements that it read or stored
 * itself. */
static __global__ void __launch_bounds__(GENERAL_THREADS)
    general_forward_kernel(struct forward a, float weight_offset) {
    const int64_t columns = a.columns, row = blockIdx.x, start = row * columns;
    const struct array from = a.branch.data ? a.sum : a.stream;
    const int64_t begin = (int64_t)threadIdx.x * PACK, step = GENERAL_THREADS * PACK;
    float x[PACK], more[PACK], sum = 0, square = 0;
    for (int64_t c = begin; c < columns; c += step) {
        int count = columns_from(c, columns);
        load_array(x, a.stream, start + c, count);
        if (a.branch.data) {
            load_array(more, a.branch, start + c, count);
            for (int i = 0; i < PACK; i++) x[i] += more[i];
            store_array(a.sum, start + c, x, count);
            load_array(x, a.sum, start + c, count);
        }
        for (int i = 0; i < PACK; i++) sum += x[i];
    }
    float mean = a.mean ? block_sum<GENERAL_THREADS>(sum) * a.per_column : 0;
    for (int64_t c = begin; c < columns; c += step) {
        int count = columns_from(c, columns);
        load_array(x, from, start + c, count);
        for (int i = 0; i < PACK; i++) square += i < count ? (x[i] - mean) * (x[i] - mean) : 0;
    }
    float variance = block_sum<GENERAL_THREADS>(square) * a.per_column;
    float rstd = 1.0f / sqrtf(variance + a.epsilon);
    if (threadIdx.x == 0) a.rstd[row] = rstd;
    if (threadIdx.x == 0 && a.mean) a.mean[row] = mean;
    struct magnitudes own = {0, 0};
    for (int64_t c = begin; c < columns; c += step) {
        int count = columns_from(c, columns);
        load_array(x, from, start + c, count);
        for (int i = 0; i < PACK; i++)
            if (i < count)
                x[i] = (x[i] - mean) * rstd * (a.weight[c + i] + weight_offset) +
                       (a.bias ? a.bias[c + i] : 0);
        store_array(a.out, start + c, x, count);
        if (a.track_amax) track_array(&own, a.out, x, count);
    }
    if (a.track_amax) merge_amax(a.track_amax, own);
}

static void launch_forward(struct backend *be, const struct forward *a, float weight_offset) {
    unsigned blocks = (unsigned)blocks_of(a->rows, ROWS);
    unsigned threads = threads_for_columns(a->columns, THREADS_MAX);
    enum dtype branch = a->branch.data ? a->branch.dtype : a->stream.dtype;
    STORAGE_SWITCH(
        a->out.dtype, Out,
        STORAGE_SWITCH(branch, Branch,
                       STORAGE_SWITCH(a->stream.dtype, Stream,
                                      LAUNCH((forward_kernel<Out, Branch, Stream>), blocks, threads,
                                             0, cuda_state(be)->compute, *a, weight_offset))));
}

void cuda_layernorm_forward(struct backend *be, const struct layernorm_forward_args *args) {
    const struct tensor *stream = args->residual ? args->residual : args->in;
    const struct forward a = {
        .out = array_of(args->out),
        .sum = array_of(args->sum),
        .stream = array_of(stream),
        .branch = array_of(args->residual ? args->in : NULL),
        .mean = args->mean,
        .rstd = args->rstd,
        .weight = (const float *)args->weight->data,
        .bias = args->bias ? (const float *)args->bias->data : NULL,
        .track_amax = args->track_amax,
        .rows = tensor_rows(args->out),
        .columns = tensor_columns(args->out),
        .per_column = 1.0f / (float)tensor_columns(args->out),
        .epsilon = args->epsilon,
    };
    assert(!args->residual == !args->sum && args->weight->dtype == DTYPE_F32);
    assert(!args->mean == !args->bias && (!args->bias || args->bias->dtype == DTYPE_F32));
    bool packed = a.out.packed && a.sum.packed && a.stream.packed && a.branch.packed &&
                  rows_are_packed(args->weight) && (!args->bias || rows_are_packed(args->bias));
    bool same = !args->sum || a.sum.dtype == a.stream.dtype;
    if (a.rows == 0) return;
    if (packed && same && a.columns <= (int64_t)THREADS_MAX * PACK)
        launch_forward(be, &a, args->weight_offset);
    else
        LAUNCH(general_forward_kernel, (unsigned)a.rows, GENERAL_THREADS, 0,
               cuda_state(be)->compute, a, args->weight_offset);
    cuda_launched(be, "layernorm_forward");
}
