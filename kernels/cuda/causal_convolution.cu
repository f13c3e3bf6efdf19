/* Causal depthwise convolution: kernels/causal_convolution.h, with a thread for a column of a
 * segment, which keeps the last rows in registers. Reads of a warp are contiguous. Bytes per
 * element: forward read and written; backward in and dout read, din written. */
#include "kernels/cuda/partials.h"
#include "kernels/cuda/ptx.h"

enum { THREADS = 128, BACKWARD_BLOCKS = 8 /* of a multiprocessor: 64 registers a thread */ };

/* A column of a tensor, from a sequence's first row on. */
template <typename T> struct rows {
    T *at;
    int stride;
};

typedef float lanes;
#define CONVOLUTION         static __device__ __forceinline__
#define CONVOLUTION_ON_ROWS template <typename T> static __device__ __forceinline__
#define ROWS                struct rows<T>
#define LANE(row, i)        (row)
#define EACH_LANE(c, i)
#define EACH_TAP(j)                _Pragma("unroll") for (int j = 0; j < TAPS; j++)
#define load_row(c, row, rows, t)  (*(row) = widen((rows).at[(int64_t)(t) * (rows).stride]))
#define store_row(c, rows, t, row) ((rows).at[(int64_t)(t) * (rows).stride] = narrow<T>(row))

static __device__ __forceinline__ float logistic(float x) {
    return reciprocal_approx(1.0f + exp2_approx(-LOG2_OF_E * x));
}

static __device__ __forceinline__ float silu(float x) {
    return x * logistic(x);
}

#include "kernels/causal_convolution.h"

static_assert((int)TAPS == (int)PACK, "a column's weights are a pack");

template <typename T>
static __device__ __forceinline__ struct rows<T> column_of(T *first, int rows, int stride,
                                                           int column) {
    return {first + (int64_t)blockIdx.z * rows * stride + column, stride};
}

/* Begins this thread's task. */
static __device__ __forceinline__ struct convolution
begin(const struct convolution &all, struct array weights, int column) {
    struct convolution c = all;
    float weight[TAPS];
    begin_task(&c, blockIdx.z, blockIdx.y);
    load_array(weight, weights, (int64_t)column * c.kernel, c.kernel);
    EACH_TAP(j) {
        c.weight[j] = c.x[j] = 0;
        for (int i = 0; i < TAPS; i++)
            if (i == j - c.unused) c.weight[j] = weight[i];
    }
    return c;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    forward_kernel(T *__restrict__ out, T *tail, const T *__restrict__ in, int stride,
                   struct array weights, struct convolution all) {
    const int column = (int)(blockIdx.x * THREADS + threadIdx.x), columns = all.columns;
    if (column >= columns) return;
    struct convolution c = begin(all, weights, column);
    convolution_forward(&c, column_of(out, c.length, columns, column),
                        column_of(tail, c.kernel - 1, columns, column),
                        column_of((T *)in, c.length, stride, column), 0.0f);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, BACKWARD_BLOCKS)
    backward_kernel(T *__restrict__ din, const T *__restrict__ dout, const T *__restrict__ in,
                    int stride, float *partials, struct array weights, struct convolution all) {
    const int column = (int)(blockIdx.x * THREADS + threadIdx.x), columns = all.columns;
    float dweight[TAPS] = {0}, sums[TAPS] = {0};
    if (column >= columns) return;
    struct convolution c = begin(all, weights, column);
    convolution_backward(&c, column_of(din, c.length, stride, column),
                         column_of((T *)dout, c.length, columns, column),
                         column_of((T *)in, c.length, stride, column), dweight, sums, 0.0f, 0.0f);
    partials += ((blockIdx.z * gridDim.y + blockIdx.y) * (int64_t)columns + column) * c.kernel;
    EACH_TAP(j) {
        if (j >= c.unused) partials[j - c.unused] = dweight[j];
    }
}

/* ---- on the host */

static dim3 grid_of(const struct tensor *in, const struct convolution *c) {
    assert(in->shape[0] <= 65535 && segments_of(in) <= 65535);
    return dim3((unsigned)blocks_of(c->columns, THREADS), (unsigned)segments_of(in),
                (unsigned)in->shape[0]);
}

void cuda_causal_convolution_forward(struct backend *be,
                                     const struct causal_convolution_forward_args *args) {
    const struct tensor *in = args->in, *tail = args->tail;
    struct convolution c = convolution_of(in, args->weight, args->out, args->first_keys);
    assert(!tail || tail->dtype == in->dtype);
    c.state_rows = tail ? (int)args->state_rows : 0, c.resumes = tail && args->resumes;
    if (tensor_count(args->out) == 0) return;
    STORAGE_SWITCH(in->dtype, T,
                   LAUNCH(forward_kernel<T>, grid_of(in, &c), THREADS, 0, cuda_state(be)->compute,
                          (T *)args->out->data, tail ? (T *)tail->data : NULL, (const T *)in->data,
                          (int)tensor_columns(in), array_of(args->weight), c));
    cuda_launched(be, "causal_convolution_forward");
}

size_t
cuda_causal_convolution_backward_scratch(struct backend *be,
                                         const struct causal_convolution_backward_args *args) {
    (void)be;
    return partials_bytes(args);
}

void cuda_causal_convolution_backward(struct backend *be,
                                      const struct causal_convolution_backward_args *args) {
    const struct tensor *in = args->in, *din = args->din, *dout = args->dout;
    const struct convolution c = convolution_of(in, args->weight, dout, args->first_keys);
    assert(tensor_columns(din) == tensor_columns(in) && din->dtype == in->dtype);
    if (tensor_count(dout) == 0) return;
    float *partials = (float *)backend_workspace(be, partials_bytes(args));
    STORAGE_SWITCH(in->dtype, T,
                   LAUNCH(backward_kernel<T>, grid_of(in, &c), THREADS, 0, cuda_state(be)->compute,
                          (T *)din->data, (const T *)dout->data, (const T *)in->data,
                          (int)tensor_columns(in), partials, array_of(args->weight), c));
    struct sums sums = sums_of(args->dweight);
    add_partials(be, &sums, partials, in->shape[0] * segments_of(in));
    cuda_launched(be, "causal_convolution_backward");
}
