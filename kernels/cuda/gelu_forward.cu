/* gelu as a separate pass, for when no matrix product fuses it. */
#include "kernels/cuda/gelu.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/amax.h"

enum { THREADS = 256, CHUNKS = 2 };

template <bool WHOLE, bool TRACKS, typename Out, typename In, int N>
static __device__ __forceinline__ void forward_share(Out *out, const In *in, int64_t first,
                                                     int64_t count, struct amax *track_amax) {
    struct magnitudes own = {0, 0};
    float values[CHUNKS][N];
    int64_t at = first + (int64_t)threadIdx.x * N;
    for (int c = 0; c < CHUNKS; c++) {
        int64_t i = at + c * THREADS * N;
        load_flat<WHOLE, N>(values[c], in + i, count - i);
    }
    for (int c = 0; c < CHUNKS; c++) {
        int64_t i = at + c * THREADS * N;
        for (int k = 0; k < N; k++) values[c][k] = gelu(values[c][k]);
        store_flat<WHOLE, N>(out + i, values[c], count - i);
        if (TRACKS) track_stored<Out, N>(&own, values[c]);
    }
    if (TRACKS) merge_amax(track_amax, own);
}

template <bool TRACKS, typename Out, typename In>
static __global__ void __launch_bounds__(THREADS)
    forward_kernel(Out *__restrict__ out, const In *__restrict__ in, int64_t count, bool aligned,
                   struct amax *track_amax) {
    constexpr int N = chunk_values(sizeof(Out), sizeof(In)), SHARE = THREADS * CHUNKS * N;
    int64_t first = (int64_t)blockIdx.x * SHARE;
    if (aligned && first + SHARE <= count) {
        forward_share<true, TRACKS, Out, In, N>(out, in, first, count, track_amax);
    } else {
        forward_share<false, TRACKS, Out, In, N>(out, in, first, count, track_amax);
    }
}

template <typename Out, typename In>
static void forward(struct backend *be, const struct gelu_forward_args *args) {
    const struct tensor *out = args->out, *in = args->in;
    constexpr int N = chunk_values(sizeof(Out), sizeof(In));
    int64_t count = tensor_count(out);
    unsigned blocks = (unsigned)blocks_of(count, THREADS * CHUNKS * N);
    bool aligned = aligned_to(out->data, N * sizeof(Out)) && aligned_to(in->data, N * sizeof(In));
    LAUNCH((args->track_amax ? forward_kernel<true, Out, In> : forward_kernel<false, Out, In>),
           blocks, THREADS, 0, cuda_state(be)->compute, (Out *)out->data, (const In *)in->data,
           count, aligned, args->track_amax);
}

void cuda_gelu_forward(struct backend *be, const struct gelu_forward_args *args) {
    assert(tensor_count(args->in) == tensor_count(args->out));
    if (tensor_count(args->out) == 0) return;
    STORAGE_SWITCH(args->out->dtype, Out,
                   STORAGE_SWITCH(args->in->dtype, In, (forward<Out, In>(be, args))));
    cuda_launched(be, "gelu_forward");
}
