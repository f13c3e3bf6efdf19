/* Dropout of the rows of a matrix, with draws that depend on the row of the run and the column. */
#include "kernels/dropout.h"

#include "kernels/cuda/amax.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/flat.h"

enum { THREADS = 256, CHUNKS = 2 };

/* Parameters of the draws. */
struct dropout {
    struct rounding_key key;
    uint32_t threshold;
    float scale;
    int64_t first_row, columns;
};

/* Drops N neighbours, of one row or several, from element `at` of the matrix on. */
template <int N>
static __device__ __forceinline__ void drop_values(float *values, const struct dropout &d,
                                                   int64_t at) {
    int64_t row = d.first_row + at / d.columns, column = at % d.columns;
    struct rounding_key key = rounding_row_key(d.key, row);
#pragma unroll
    for (int k = 0; k < N; k++) {
        if (column == d.columns) {
            column = 0;
            key = rounding_row_key(d.key, ++row);
        }
        values[k] =
            dropout_draw(key, column++) < d.threshold ? 0.0f : __fmul_rn(d.scale, values[k]);
    }
}

template <bool WHOLE, bool ACCUMULATES, bool TRACKS, typename Out, typename In, int N>
static __device__ __forceinline__ void drop_share(Out *out, const In *in, int64_t first,
                                                  int64_t count, const struct dropout &d,
                                                  struct amax *track_amax) {
    struct magnitudes own = {0, 0};
    float values[CHUNKS][N], sums[CHUNKS][N];
    int64_t at = first + (int64_t)threadIdx.x * N;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        int64_t i = at + c * THREADS * N;
        load_flat<WHOLE, N>(values[c], in + i, count - i);
        if (ACCUMULATES) load_flat<WHOLE, N>(sums[c], out + i, count - i);
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        int64_t i = at + c * THREADS * N;
        drop_values<N>(values[c], d, i);
        if (ACCUMULATES)
            for (int k = 0; k < N; k++) values[c][k] = __fadd_rn(sums[c][k], values[c][k]);
        store_flat<WHOLE, N>(out + i, values[c], count - i);
        if (TRACKS) track_stored<Out, N>(&own, values[c]);
    }
    if (TRACKS) merge_amax(track_amax, own);
}

template <bool ACCUMULATES, bool TRACKS, typename Out, typename In>
static __global__ void __launch_bounds__(THREADS)
    dropout_kernel(Out *out, const In *in, int64_t count, bool aligned, struct dropout d,
                   const struct step_inputs *__restrict__ inputs, struct amax *track_amax) {
    constexpr int N = chunk_values(sizeof(Out), sizeof(In)), SHARE = THREADS * CHUNKS * N;
    int64_t first = (int64_t)blockIdx.x * SHARE;
    d.first_row = inputs->first_row;
    if (aligned && first + SHARE <= count)
        drop_share<true, ACCUMULATES, TRACKS, Out, In, N>(out, in, first, count, d, track_amax);
    else drop_share<false, ACCUMULATES, TRACKS, Out, In, N>(out, in, first, count, d, track_amax);
}

template <typename Out, typename In>
static void drop(struct backend *be, const struct dropout_args *args) {
    const struct tensor *out = args->out, *in = args->in;
    constexpr int N = chunk_values(sizeof(Out), sizeof(In));
    int64_t count = tensor_count(out);
    struct dropout d = {args->key, dropout_threshold(args->probability),
                        (float)(1 / (1 - args->probability)), 0, tensor_columns(in)};
    bool aligned = aligned_to(out->data, N * sizeof(Out)) && aligned_to(in->data, N * sizeof(In));
    LAUNCH((args->accumulate   ? dropout_kernel<true, false, Out, In>
            : args->track_amax ? dropout_kernel<false, true, Out, In>
                               : dropout_kernel<false, false, Out, In>),
           (unsigned)blocks_of(count, THREADS * CHUNKS * N), THREADS, 0, cuda_state(be)->compute,
           (Out *)out->data, (const In *)in->data, count, aligned, d, args->inputs,
           args->track_amax);
}

void cuda_dropout(struct backend *be, const struct dropout_args *args) {
    assert(tensor_count(args->in) == tensor_count(args->out));
    assert(!(args->accumulate && args->track_amax));
    if (tensor_count(args->out) == 0) return;
    STORAGE_SWITCH(args->out->dtype, Out,
                   STORAGE_SWITCH(args->in->dtype, In, (drop<Out, In>(be, args))));
    cuda_launched(be, "dropout");
}
