/* Causal depthwise convolution. Bytes per element: forward read and written; backward in and dout
 * read, din written. A thread computes a column of some rows, and keeps the last rows in registers;
 * backward it also computes the rows after them that they reach. Reads of a warp are contiguous. */
#include "kernels/cuda/partials.h"
#include "kernels/cuda/ptx.h"

enum { THREADS = 128, SEGMENT = 64 /* rows of a thread */, TAPS = CONVOLUTION_KERNEL_MAX };
static_assert((int)TAPS == (int)PACK, "a column's weights are a pack");

struct convolution {
    struct array weight;
    const int32_t *first_keys;               /* or NULL */
    float *partials;                         /* backward: [segments of all sequences, C, K] */
    int64_t stride;                          /* columns of a row of `in` */
    int length, state_rows, columns, kernel; /* T, as in the arguments, C, K */
    bool resumes;
};

/* Row t of a thread's column: of the tail before the first row, and 0 without it. */
template <typename T>
static __device__ __forceinline__ float value_at(const struct convolution &a, const T *in,
                                                 const T *tail, int t) {
    if (t >= 0) return widen(in[t * a.stride]);
    const int row = t + a.kernel - 1;
    return a.resumes && row >= 0 ? widen(tail[(int64_t)row * a.columns]) : 0;
}

/* A thread's column: weights and rows t - TAPS + 1 .. t, of which the last K count. */
struct column {
    float weight[TAPS], x[TAPS];
    const int32_t *first_keys; /* of the sequence */
};

template <typename T>
static __device__ __forceinline__ struct column load_column(const struct convolution &a,
                                                            const T *in, const T *tail, int first) {
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x), unused = TAPS - a.kernel;
    float weight[TAPS];
    struct column c;
    load_array(weight, a.weight, (int64_t)index * a.kernel, a.kernel);
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
        c.weight[j] = 0;
        for (int i = 0; i < TAPS; i++)
            if (i == j - unused) c.weight[j] = weight[i];
        c.x[j] = j > 0 ? value_at(a, in, tail, first - TAPS + j) : 0;
    }
    c.first_keys = a.first_keys ? a.first_keys + (int64_t)blockIdx.z * a.length : NULL;
    return c;
}

/* Returns j of the first value in x that row t reads. */
static __device__ __forceinline__ int first_tap(const struct convolution &a, const struct column &c,
                                                int t) {
    const int first = c.first_keys ? c.first_keys[t] : 0, unused = TAPS - a.kernel;
    return first == 0 && a.resumes ? unused : max(unused, first - (t - TAPS + 1));
}

/* Moves on to the next row, which is `value`. */
static __device__ __forceinline__ void push(float x[TAPS], float value) {
#pragma unroll
    for (int j = 0; j + 1 < TAPS; j++) x[j] = x[j + 1];
    x[TAPS - 1] = value;
}

static __device__ __forceinline__ float convolve(const struct column &c, int tap) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < TAPS; j++) sum += j >= tap ? c.weight[j] * c.x[j] : 0;
    return sum;
}

static __device__ __forceinline__ float logistic(float x) {
    return reciprocal_approx(1.0f + exp2_approx(-LOG2_OF_E * x));
}

/* The tail is read and written by the threads of a sequence's first rows. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    forward_kernel(T *__restrict__ out, T *tail, const T *__restrict__ in, struct convolution a) {
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x);
    const int begin = (int)blockIdx.y * SEGMENT, end = min(begin + SEGMENT, a.length);
    if (index >= a.columns) return;
    in += (int64_t)blockIdx.z * a.length * a.stride + index;
    out += (int64_t)blockIdx.z * a.length * a.columns + index;
    if (tail) tail += (int64_t)blockIdx.z * (a.kernel - 1) * a.columns + index;
    struct column c = load_column(a, in, tail, begin);
    for (int t = begin; t < end; t++) {
        push(c.x, widen(in[t * a.stride]));
        const float sum = convolve(c, first_tap(a, c, t));
        out[(int64_t)t * a.columns] = narrow<T>(sum * logistic(sum));
    }
    if (!tail || begin > 0) return;
    for (int i = 0; i + 1 < TAPS; i++) /* ascending: a row of the old tail moves to one before */
        if (i + 1 < a.kernel)
            tail[(int64_t)i * a.columns] =
                narrow<T>(value_at(a, in, tail, a.state_rows - a.kernel + 1 + i));
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    backward_kernel(T *__restrict__ din, const T *__restrict__ dout, const T *__restrict__ in,
                    struct convolution a) {
    const int index = (int)(blockIdx.x * THREADS + threadIdx.x);
    const int begin = (int)blockIdx.y * SEGMENT, end = min(begin + SEGMENT, a.length);
    float dweight[TAPS] = {0}, sums[TAPS] = {0}; /* sums[j]: of row t - TAPS + 1 + j */
    if (index >= a.columns) return;
    in += (int64_t)blockIdx.z * a.length * a.stride + index;
    din += (int64_t)blockIdx.z * a.length * a.stride + index;
    dout += (int64_t)blockIdx.z * a.length * a.columns + index;
    struct column c = load_column(a, in, (const T *)NULL, begin);
    for (int t = begin; t < end + TAPS - 1; t++) {
        push(c.x, t < a.length ? widen(in[t * a.stride]) : 0);
        push(sums, 0);
        if (t < a.length) {
            const int tap = first_tap(a, c, t);
            const float x = convolve(c, tap), s = logistic(x);
            const float d = widen(dout[(int64_t)t * a.columns]) * (s + x * s * (1.0f - s));
#pragma unroll
            for (int j = 0; j < TAPS; j++) {
                sums[j] += j >= tap ? c.weight[j] * d : 0;
                dweight[j] += j >= tap && t < end ? c.x[j] * d : 0;
            }
        }
        if (t - TAPS + 1 >= begin) din[(t - TAPS + 1) * a.stride] = narrow<T>(sums[0]);
    }
    float *partial =
        a.partials +
        (((int64_t)blockIdx.z * gridDim.y + blockIdx.y) * a.columns + index) * a.kernel;
#pragma unroll
    for (int j = 0; j < TAPS; j++)
        if (j >= TAPS - a.kernel) partial[j - (TAPS - a.kernel)] = dweight[j];
}

/* ---- on the host */

static dim3 grid_of(const struct tensor *in, const struct tensor *weight) {
    return dim3((unsigned)blocks_of(tensor_rows(weight), THREADS),
                (unsigned)blocks_of(in->shape[1], SEGMENT), (unsigned)in->shape[0]);
}

static struct convolution prepare(const struct tensor *in, const struct tensor *weight,
                                  const int32_t *first_keys) {
    assert(in->rank == 3 && in->shape[0] <= 65535 && in->shape[1] <= 65535 * SEGMENT);
    assert(tensor_columns(weight) <= TAPS && tensor_rows(weight) <= tensor_columns(in));
    struct convolution a;
    memset(&a, 0, sizeof a);
    a.weight = array_of(weight), a.first_keys = first_keys, a.stride = tensor_columns(in);
    a.length = (int)in->shape[1];
    a.columns = (int)tensor_rows(weight), a.kernel = (int)tensor_columns(weight);
    return a;
}

void cuda_causal_convolution_forward(struct backend *be,
                                     const struct causal_convolution_forward_args *args) {
    const struct tensor *in = args->in, *out = args->out, *tail = args->tail;
    struct convolution a = prepare(in, args->weight, args->first_keys);
    assert(tensor_columns(out) == a.columns && out->dtype == in->dtype);
    assert(tensor_rows(out) == tensor_rows(in) && (!tail || tail->dtype == in->dtype));
    a.resumes = tail && args->resumes;
    a.state_rows = (int)args->state_rows;
    if (tensor_count(out) == 0) return;
    STORAGE_SWITCH(in->dtype, T,
                   LAUNCH(forward_kernel<T>, grid_of(in, args->weight), THREADS, 0,
                          cuda_state(be)->compute, (T *)out->data, tail ? (T *)tail->data : NULL,
                          (const T *)in->data, a));
    cuda_launched(be, "causal_convolution_forward");
}

static int64_t segments_of(const struct tensor *in) {
    return in->shape[0] * blocks_of(in->shape[1], SEGMENT);
}

size_t
cuda_causal_convolution_backward_scratch(struct backend *be,
                                         const struct causal_convolution_backward_args *args) {
    (void)be;
    return (size_t)(segments_of(args->in) * tensor_count(args->weight)) * sizeof(float);
}

void cuda_causal_convolution_backward(struct backend *be,
                                      const struct causal_convolution_backward_args *args) {
    const struct tensor *in = args->in, *din = args->din, *dout = args->dout;
    struct convolution a = prepare(in, args->weight, args->first_keys);
    assert(tensor_columns(dout) == a.columns && tensor_columns(din) == a.stride);
    assert(din->dtype == in->dtype && dout->dtype == in->dtype);
    if (tensor_count(dout) == 0) return;
    a.partials = (float *)backend_workspace(be, cuda_causal_convolution_backward_scratch(be, args));
    STORAGE_SWITCH(in->dtype, T,
                   LAUNCH(backward_kernel<T>, grid_of(in, args->weight), THREADS, 0,
                          cuda_state(be)->compute, (T *)din->data, (const T *)dout->data,
                          (const T *)in->data, a));
    struct sums sums = sums_of(args->dweight);
    add_partials(be, &sums, a.partials, segments_of(in));
    cuda_launched(be, "causal_convolution_backward");
}
