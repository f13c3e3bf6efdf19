/* gelu and its gradient as passes of their own, for when no matrix product takes them along. */
#include "kernels/cuda/gelu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/magnitude.h"

enum { THREADS = 256, FORWARD_CHUNKS = 2, BACKWARD_CHUNKS = 2 };

template <bool WHOLE, bool LOOKS, typename Out, typename In, int N>
static __device__ __forceinline__ void forward_share(Out *out, const In *in, int64_t first,
                                                     int64_t count, struct magnitude *magnitude) {
    struct seen own = {0, 0};
    float values[FORWARD_CHUNKS][N];
    int64_t at = first + (int64_t)threadIdx.x * N;
    for (int c = 0; c < FORWARD_CHUNKS; c++) {
        int64_t i = at + c * THREADS * N;
        load_flat<WHOLE, N>(values[c], in + i, count - i);
    }
    for (int c = 0; c < FORWARD_CHUNKS; c++) {
        int64_t i = at + c * THREADS * N;
        for (int k = 0; k < N; k++) values[c][k] = gelu(values[c][k]);
        store_flat<WHOLE, N>(out + i, values[c], count - i);
        if (LOOKS) look_at_stored<Out, N>(&own, values[c]);
    }
    if (LOOKS) join_magnitude(magnitude, own);
}

template <bool LOOKS, typename Out, typename In>
static __global__ void __launch_bounds__(THREADS)
    forward_kernel(Out *__restrict__ out, const In *__restrict__ in, int64_t count, bool aligned,
                   struct magnitude *magnitude) {
    constexpr int N = chunk_values(sizeof(Out), sizeof(In)), SHARE = THREADS * FORWARD_CHUNKS * N;
    int64_t first = (int64_t)blockIdx.x * SHARE;
    if (aligned && first + SHARE <= count) {
        forward_share<true, LOOKS, Out, In, N>(out, in, first, count, magnitude);
    } else {
        forward_share<false, LOOKS, Out, In, N>(out, in, first, count, magnitude);
    }
}

template <typename Out, typename In>
static void forward(struct backend *be, const struct gelu_forward_args *args) {
    const struct tensor *out = args->out, *in = args->in;
    constexpr int N = chunk_values(sizeof(Out), sizeof(In));
    int64_t count = tensor_count(out);
    unsigned blocks = (unsigned)blocks_of(count, THREADS * FORWARD_CHUNKS * N);
    bool aligned = aligned_to(out->data, N * sizeof(Out)) && aligned_to(in->data, N * sizeof(In));
    LAUNCH((args->magnitude ? forward_kernel<true, Out, In> : forward_kernel<false, Out, In>),
           blocks, THREADS, 0, cuda_state(be)->compute, (Out *)out->data, (const In *)in->data,
           count, aligned, args->magnitude);
}

void cuda_gelu_forward(struct backend *be, const struct gelu_forward_args *args) {
    assert(tensor_count(args->in) == tensor_count(args->out));
    if (tensor_count(args->out) == 0) return;
    STORAGE_SWITCH(args->out->dtype, Out,
                   STORAGE_SWITCH(args->in->dtype, In, (forward<Out, In>(be, args))));
    cuda_launched(be, "gelu_forward");
}

template <bool WHOLE, bool LOOKS, typename Din, typename Dout, typename In, int N>
static __device__ __forceinline__ void backward_share(Din *din, const Dout *dout, const In *in,
                                                      int64_t first, int64_t count,
                                                      struct magnitude *magnitude) {
    struct seen own = {0, 0};
    float gradient[BACKWARD_CHUNKS][N], x[BACKWARD_CHUNKS][N];
    int64_t at = first + (int64_t)threadIdx.x * N;
    for (int c = 0; c < BACKWARD_CHUNKS; c++) {
        int64_t i = at + c * THREADS * N;
        load_flat<WHOLE, N>(gradient[c], dout + i, count - i);
        load_flat<WHOLE, N>(x[c], in + i, count - i);
    }
    for (int c = 0; c < BACKWARD_CHUNKS; c++) {
        int64_t i = at + c * THREADS * N;
        for (int k = 0; k < N; k++) gradient[c][k] *= gelu_derivative(x[c][k]);
        store_flat<WHOLE, N>(din + i, gradient[c], count - i);
        if (LOOKS) look_at_stored<Din, N>(&own, gradient[c]);
    }
    if (LOOKS) join_magnitude(magnitude, own);
}

/* din may be dout: a thread reads all it needs before it writes there. */
template <bool LOOKS, typename Din, typename Dout, typename In>
static __global__ void __launch_bounds__(THREADS)
    backward_kernel(Din *din, const Dout *dout, const In *__restrict__ in, int64_t count,
                    bool aligned, struct magnitude *magnitude) {
    constexpr int N = chunk_values(sizeof(Din), sizeof(Dout), sizeof(In));
    constexpr int SHARE = THREADS * BACKWARD_CHUNKS * N;
    int64_t first = (int64_t)blockIdx.x * SHARE;
    if (aligned && first + SHARE <= count) {
        backward_share<true, LOOKS, Din, Dout, In, N>(din, dout, in, first, count, magnitude);
    } else {
        backward_share<false, LOOKS, Din, Dout, In, N>(din, dout, in, first, count, magnitude);
    }
}

template <typename Din, typename Dout, typename In>
static void backward(struct backend *be, const struct gelu_backward_args *args) {
    constexpr int N = chunk_values(sizeof(Din), sizeof(Dout), sizeof(In));
    const struct tensor *din = args->din, *dout = args->dout, *in = args->in;
    int64_t count = tensor_count(din);
    unsigned blocks = (unsigned)blocks_of(count, THREADS * BACKWARD_CHUNKS * N);
    bool aligned = aligned_to(din->data, N * sizeof(Din)) &&
                   aligned_to(dout->data, N * sizeof(Dout)) && aligned_to(in->data, N * sizeof(In));
    LAUNCH((args->magnitude ? backward_kernel<true, Din, Dout, In>
                            : backward_kernel<false, Din, Dout, In>),
           blocks, THREADS, 0, cuda_state(be)->compute, (Din *)din->data, (const Dout *)dout->data,
           (const In *)in->data, count, aligned, args->magnitude);
}

void cuda_gelu_backward(struct backend *be, const struct gelu_backward_args *args) {
    int64_t count = tensor_count(args->din);
    assert(tensor_count(args->dout) == count && tensor_count(args->in) == count);
    if (count == 0) return;
    STORAGE_SWITCH(
        args->din->dtype, Din,
        STORAGE_SWITCH(args->dout->dtype, Dout,
                       STORAGE_SWITCH(args->in->dtype, In, (backward<Din, Dout, In>(be, args)))));
    cuda_launched(be, "gelu_backward");
}
