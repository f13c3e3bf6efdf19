/* Operations of optimizers on whole matrices. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/reduce.h"

enum { THREADS = 256, SHARE = 16 * THREADS /* elements of a block */ };

/* ---- normalize */

/* partial[b] = sum of squares of the b-th share. Shares depend on the count alone. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    squares_kernel(double *__restrict__ partial, const T *__restrict__ in, int64_t count) {
    int64_t first = (int64_t)blockIdx.x * SHARE + threadIdx.x;
    double total = 0;
#pragma unroll 4
    for (int i = 0; i < SHARE / THREADS; i++) {
        int64_t at = first + i * THREADS;
        float value = at < count ? widen(in[at]) : 0;
        total += (double)value * value;
    }
    total = block_sum<THREADS>(total);
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

template <typename Out, typename T>
static __global__ void __launch_bounds__(THREADS)
    divide_kernel(Out *out, const T *in, int64_t count, const double *__restrict__ partial,
                  int partials, float epsilon) {
    double total = 0;
    for (int i = (int)threadIdx.x; i < partials; i += THREADS) total += partial[i];
    float norm = (float)sqrt(block_sum<THREADS>(total)), divisor = norm > epsilon ? norm : epsilon;
    int64_t first = (int64_t)blockIdx.x * SHARE + threadIdx.x;
#pragma unroll 4
    for (int i = 0; i < SHARE / THREADS; i++) {
        int64_t at = first + i * THREADS;
        if (at < count) out[at] = narrow<Out>(__fdiv_rn(widen(in[at]), divisor));
    }
}

size_t cuda_normalize_scratch(struct backend *be, const struct normalize_args *args) {
    (void)be;
    return (size_t)blocks_of(tensor_count(args->in), SHARE) * sizeof(double);
}

void cuda_normalize(struct backend *be, const struct normalize_args *args) {
    int64_t count = tensor_count(args->in), blocks = blocks_of(count, SHARE);
    double *partial = (double *)backend_workspace(be, cuda_normalize_scratch(be, args));
    cudaStream_t stream = cuda_state(be)->compute;
    assert(tensor_count(args->out) == count);
    if (count == 0) return;
    STORAGE_SWITCH(args->in->dtype, T, {
        LAUNCH(squares_kernel<T>, (unsigned)blocks, THREADS, 0, stream, partial,
               (const T *)args->in->data, count);
        STORAGE_SWITCH(args->out->dtype, Out,
                       LAUNCH((divide_kernel<Out, T>), (unsigned)blocks, THREADS, 0, stream,
                              (Out *)args->out->data, (const T *)args->in->data, count, partial,
                              (int)blocks, args->epsilon));
    });
    cuda_launched(be, "normalize");
}

/* ---- weighted sums */

/* A matrix, of which some columns are read or written. */
template <typename T> struct window {
    T *data; /* first of the columns */
    int64_t stride, step;
};

/* N: neighbours of a group of columns that a thread moves, which divides groups and strides. */
template <int N, typename Out, typename A, typename B>
static __global__ void __launch_bounds__(THREADS)
    weighted_sum_kernel(struct window<Out> out, struct window<const A> a, struct window<const B> b,
                        int64_t count, int64_t columns, int64_t size, float alpha, float beta) {
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    if (at >= count) return;
    int64_t row = at / columns, column = at - row * columns, group = 0;
    float x[N], y[N];
    if (size < columns) group = column / size, column -= group * size;
    load_flat<(N > 1), N>(x, a.data + row * a.stride + group * a.step + column, 1);
    if (b.data) load_flat<(N > 1), N>(y, b.data + at, 1);
    for (int i = 0; i < N; i++) {
        x[i] = __fmul_rn(alpha, x[i]);
        if (b.data) x[i] += beta * y[i];
    }
    store_flat<(N > 1), N>(out.data + row * out.stride + group * out.step + column, x, 1);
}

template <typename Out, typename A, typename B>
static void launch(struct backend *be, const struct weighted_sum_args *args) {
    constexpr int N = chunk_values(sizeof(Out), sizeof(A), sizeof(B));
    int64_t columns = args->columns, count = tensor_rows(args->out) * columns;
    const int64_t group = args->group ? args->group : columns;
    struct window<Out> out = {
        (Out *)args->out->data + args->out_first, tensor_columns(args->out), args->out_step
    };
    struct window<const A> a = {
        (const A *)args->a->data + args->a_first, tensor_columns(args->a), args->a_step
    };
    struct window<const B> b = {
        args->b ? (const B *)args->b->data : NULL, columns, 0
    };
    bool chunks = group % N == 0 && out.stride % N == 0 && a.stride % N == 0 && out.step % N == 0 &&
                  a.step % N == 0 && aligned_to(out.data, N * sizeof(Out)) &&
                  aligned_to(a.data, N * sizeof(A)) && aligned_to(b.data, N * sizeof(B));
    LAUNCH((chunks ? weighted_sum_kernel<N, Out, A, B> : weighted_sum_kernel<1, Out, A, B>),
           (unsigned)blocks_of(count, (int64_t)THREADS * (chunks ? N : 1)), THREADS, 0,
           cuda_state(be)->compute, out, a, b, count, columns, group, args->alpha, args->beta);
}

void cuda_weighted_sum(struct backend *be, const struct weighted_sum_args *args) {
    enum dtype b = args->b ? args->b->dtype : DTYPE_F32;
    assert(tensor_rows(args->a) == tensor_rows(args->out));
    assert(!args->b || tensor_columns(args->b) == args->columns);
    assert(args->group == 0 || args->columns % args->group == 0);
    if (tensor_rows(args->out) * args->columns == 0) return;
    STORAGE_SWITCH(
        args->out->dtype, Out,
        STORAGE_SWITCH(args->a->dtype, A, STORAGE_SWITCH(b, B, (launch<Out, A, B>(be, args)))));
    cuda_launched(be, "weighted_sum");
}
