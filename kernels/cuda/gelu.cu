/* gelu and its gradient as separate passes, for when no matrix product fuses them. The gradient's
 * computes the column sums of the result if requested, which saves reading it once more. */
#include "kernels/cuda/gelu.h"
#include "kernels/cuda/map.h"
#include "kernels/cuda/row_groups.h"

enum { SUMMED_AT_ONCE = 2 /* rows, of two operands each */ };

struct gelu_map {
    enum { CHUNKS = 2, TRACKS = true, IN_PLACE = false };
};

template <int N>
static __device__ __forceinline__ void apply(const struct gelu_map &, float (&values)[N],
                                             const float (&)[N], int64_t) {
    for (int k = 0; k < N; k++) values[k] = gelu(values[k]);
}

struct relu2_map {
    enum { CHUNKS = 2, TRACKS = true, IN_PLACE = false };
};

template <int N>
static __device__ __forceinline__ void apply(const struct relu2_map &, float (&values)[N],
                                             const float (&)[N], int64_t) {
    for (int k = 0; k < N; k++) values[k] *= values[k] > 0 ? values[k] : 0;
}

void cuda_gelu_forward(struct backend *be, const struct gelu_forward_args *args) {
    if (args->relu2) map_tensor(be, relu2_map(), args->out, args->in, args->track_amax);
    else map_tensor(be, gelu_map(), args->out, args->in, args->track_amax);
    cuda_launched(be, "gelu_forward");
}

/* Multiplies gradients dout by the slope of GELU at the input. */
struct gelu_gradient {
    enum { CHUNKS = 2, TRACKS = true, IN_PLACE = true };
};

template <int N>
static __device__ __forceinline__ void apply(const struct gelu_gradient &, float (&gradient)[N],
                                             const float (&x)[N], int64_t) {
    for (int k = 0; k < N; k++) gradient[k] *= gelu_derivative(x[k]);
}

struct relu2_gradient {
    enum { CHUNKS = 2, TRACKS = true, IN_PLACE = true };
};

template <int N>
static __device__ __forceinline__ void apply(const struct relu2_gradient &, float (&gradient)[N],
                                             const float (&x)[N], int64_t) {
    for (int k = 0; k < N; k++) gradient[k] *= x[k] > 0 ? 2 * x[k] : 0;
}

template <typename Map>
static void multiply_by_slope(struct backend *be, const Map &map,
                              const struct gelu_backward_args *args) {
    STORAGE_SWITCH(args->din->dtype, Din,
                   STORAGE_SWITCH(args->dout->dtype, Dout,
                                  STORAGE_SWITCH(args->in->dtype, In,
                                                 (map_arrays<Din, Dout, In>(
                                                     be, map, args->din, args->dout, args->in->data,
                                                     args->track_amax)))));
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
    return !args->relu2 && args->din->data == args->dout->data &&
           args->din->dtype == args->dout->dtype && rows_are_packed(args->din) &&
           rows_are_packed(args->in);
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
        if (args->relu2) multiply_by_slope(be, relu2_gradient(), args);
        else multiply_by_slope(be, gelu_gradient(), args);
        struct column_sums_args sums = {args->column_sums, args->din};
        if (args->column_sums) cuda_sum_columns(be, &sums, scratch);
    }
    cuda_launched(be, "gelu_backward");
}

void cuda_gelu_backward(struct backend *be, const struct gelu_backward_args *args) {
    cuda_gelu_derivative(be, args, backend_workspace(be, cuda_gelu_backward_scratch(be, args)));
}
