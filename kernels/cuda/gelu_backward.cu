/* The gradient of gelu as a separate pass, for when no matrix product fuses it. It computes the
 * column sums of the result if requested, which saves reading it once more. */
#include "kernels/cuda/flat.h"
#include "kernels/cuda/gelu.h"
#include "kernels/cuda/amax.h"
#include "kernels/cuda/row_groups.h"

enum { THREADS = 256, CHUNKS = 2, SUMMED_AT_ONCE = 2 /* rows, of two operands each */ };

template <bool WHOLE, bool TRACKS, typename Din, typename Dout, typename In, int N>
static __device__ __forceinline__ void backward_share(Din *din, const Dout *dout, const In *in,
                                                      int64_t first, int64_t count,
                                                      struct amax *track_amax) {
    struct magnitudes own = {0, 0};
    float gradient[CHUNKS][N], x[CHUNKS][N];
    int64_t at = first + (int64_t)threadIdx.x * N;
    for (int c = 0; c < CHUNKS; c++) {
        int64_t i = at + c * THREADS * N;
        load_flat<WHOLE, N>(gradient[c], dout + i, count - i);
        load_flat<WHOLE, N>(x[c], in + i, count - i);
    }
    for (int c = 0; c < CHUNKS; c++) {
        int64_t i = at + c * THREADS * N;
        for (int k = 0; k < N; k++) gradient[c][k] *= gelu_derivative(x[c][k]);
        store_flat<WHOLE, N>(din + i, gradient[c], count - i);
        if (TRACKS) track_stored<Din, N>(&own, gradient[c]);
    }
    if (TRACKS) merge_amax(track_amax, own);
}

/* din may be dout: a thread reads its inputs before it writes there. */
template <bool TRACKS, typename Din, typename Dout, typename In>
static __global__ void __launch_bounds__(THREADS)
    backward_kernel(Din *din, const Dout *dout, const In *__restrict__ in, int64_t count,
                    bool aligned, struct amax *track_amax) {
    constexpr int N = chunk_values(sizeof(Din), sizeof(Dout), sizeof(In));
    constexpr int SHARE = THREADS * CHUNKS * N;
    int64_t first = (int64_t)blockIdx.x * SHARE;
    if (aligned && first + SHARE <= count) {
        backward_share<true, TRACKS, Din, Dout, In, N>(din, dout, in, first, count, track_amax);
    } else {
        backward_share<false, TRACKS, Din, Dout, In, N>(din, dout, in, first, count, track_amax);
    }
}

template <typename Din, typename Dout, typename In>
static void backward(struct backend *be, const struct gelu_backward_args *args) {
    constexpr int N = chunk_values(sizeof(Din), sizeof(Dout), sizeof(In));
    const struct tensor *din = args->din, *dout = args->dout, *in = args->in;
    int64_t count = tensor_count(din);
    unsigned blocks = (unsigned)blocks_of(count, THREADS * CHUNKS * N);
    bool aligned = aligned_to(din->data, N * sizeof(Din)) &&
                   aligned_to(dout->data, N * sizeof(Dout)) && aligned_to(in->data, N * sizeof(In));
    LAUNCH((args->track_amax ? backward_kernel<true, Din, Dout, In>
                             : backward_kernel<false, Din, Dout, In>),
           blocks, THREADS, 0, cuda_state(be)->compute, (Din *)din->data, (const Dout *)dout->data,
           (const In *)in->data, count, aligned, args->track_amax);
}

/* ---- with column sums: din is dout, and its rows and those of in are read in packs */

template <bool TRACKS, typename Out, typename In>
static __global__ void __launch_bounds__(TILE_WARPS *WARP)
    summed_kernel(Out *inout, const In *__restrict__ in, float *__restrict__ partials,
                  struct row_groups cut, struct amax *track_amax) {
    const int together = SUMMED_AT_ONCE;
    struct own_rows own = own_rows_of(cut);
    struct magnitudes seen = {0, 0};
    int warp = (int)threadIdx.x / WARP;
    float sum[PACK] = {0};
    if (own.count > 0) {
        for (int64_t row = own.first + warp; row < own.last; row += together * TILE_WARPS) {
            float d[together][PACK] = {{0}}, x[together][PACK] = {{0}};
            int64_t at = row * cut.columns + own.column, next = TILE_WARPS * cut.columns;
#pragma unroll
            for (int i = 0; i < together; i++) {
                if (row + i * TILE_WARPS >= own.last) continue;
                load_pack(d[i], inout + at + i * next);
                load_pack(x[i], in + at + i * next);
            }
#pragma unroll
            for (int i = 0; i < together; i++) {
                if (row + i * TILE_WARPS >= own.last) continue;
                for (int k = 0; k < PACK; k++) d[i][k] *= gelu_derivative(x[i][k]);
                store_pack(inout + at + i * next, d[i]);
                for (int k = 0; k < PACK; k++) sum[k] += rounded<Out>(d[i][k]);
                if (TRACKS) track_stored<Out, PACK>(&seen, d[i]);
            }
        }
    }
    if (TRACKS) merge_amax(track_amax, seen);
    store_partials(partials, sum, cut);
}

static bool sums_in_same_pass(const struct gelu_backward_args *args) {
    return args->din->data == args->dout->data && args->din->dtype == args->dout->dtype &&
           rows_are_packed(args->din) && rows_are_packed(args->in);
}

static void summed(struct backend *be, const struct gelu_backward_args *args, float *partials) {
    struct row_groups cut = row_groups_of(args->din);
    struct sums sums = sums_of(args->column_sums);
    dim3 grid = row_groups_grid(&cut);
    STORAGE_SWITCH(args->din->dtype, Out, STORAGE_SWITCH(args->in->dtype, In, {
                       LAUNCH((args->track_amax ? summed_kernel<true, Out, In>
                                                : summed_kernel<false, Out, In>),
                              grid, TILE_WARPS * WARP, 0, cuda_state(be)->compute,
                              (Out *)args->din->data, (const In *)args->in->data, partials, cut,
                              args->track_amax);
                   }));
    add_partials(be, &sums, partials, cut.groups);
}

/* ---- on the host */

size_t cuda_gelu_backward_scratch(struct backend *be, const struct gelu_backward_args *args) {
    (void)be;
    return args->column_sums ? row_groups_bytes(args->din) : 0;
}

void cuda_gelu_derivative(struct backend *be, const struct gelu_backward_args *args,
                          void *scratch) {
    int64_t count = tensor_count(args->din);
    assert(tensor_count(args->dout) == count && tensor_count(args->in) == count);
    if (count == 0) return;
    if (args->column_sums && sums_in_same_pass(args)) {
        summed(be, args, (float *)scratch);
    } else {
        STORAGE_SWITCH(args->din->dtype, Din,
                       STORAGE_SWITCH(args->dout->dtype, Dout,
                                      STORAGE_SWITCH(args->in->dtype, In,
                                                     (backward<Din, Dout, In>(be, args)))));
        struct column_sums_args sums = {args->column_sums, args->din};
        if (args->column_sums) cuda_sum_columns(be, &sums, scratch);
    }
    cuda_launched(be, "gelu_backward");
}

void cuda_gelu_backward(struct backend *be, const struct gelu_backward_args *args) {
    cuda_gelu_derivative(be, args, backend_workspace(be, cuda_gelu_backward_scratch(be, args)));
}
