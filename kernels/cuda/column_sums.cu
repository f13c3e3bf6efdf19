/* sums += column sums of a matrix: the gradient of a bias.
 *
 * The matrix is read once, 2 or 4 bytes per element, and nothing else of that size moves: the limit
 * is memory bandwidth. */
#include "kernels/cuda/row_groups.h"

/* partials [groups, columns]; grid: column tiles x groups. */
template <typename T, bool PACKED>
static __global__ void __launch_bounds__(TILE_WARPS *WARP)
    column_sums_kernel(float *__restrict__ partials, const T *__restrict__ in,
                       struct row_groups cut) {
    struct own_rows own = own_rows_of(cut);
    int warp = (int)threadIdx.x / WARP;
    float sum[PACK] = {0};
    if (own.count > 0) {
        for (int64_t row = own.first + warp; row < own.last; row += ROWS_AT_ONCE * TILE_WARPS) {
            float values[ROWS_AT_ONCE][PACK] = {{0}};
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; i++)
                if (row + i * TILE_WARPS < own.last)
                    load_columns<PACKED>(values[i],
                                         in + (row + i * TILE_WARPS) * cut.columns + own.column,
                                         own.count);
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; i++)
                for (int k = 0; k < PACK; k++) sum[k] += values[i][k];
        }
    }
    store_partials(partials, sum, cut);
}

size_t cuda_column_sums_scratch(struct backend *be, const struct column_sums_args *args) {
    (void)be;
    return row_groups_bytes(args->in);
}

void cuda_sum_columns(struct backend *be, const struct column_sums_args *args, void *scratch) {
    const struct tensor *in = args->in;
    struct row_groups cut = row_groups_of(in);
    struct sums sums = sums_of(args->sums);
    float *partials = (float *)scratch;
    assert(tensor_count(args->sums) == cut.columns);
    if (cut.rows == 0) return;
    dim3 grid = row_groups_grid(&cut);
    cudaStream_t stream = cuda_state(be)->compute;
    STORAGE_SWITCH(
        in->dtype, T,
        LAUNCH((rows_are_packed(in) ? column_sums_kernel<T, true> : column_sums_kernel<T, false>),
               grid, TILE_WARPS * WARP, 0, stream, partials, (const T *)in->data, cut));
    add_partials(be, &sums, partials, cut.groups);
    cuda_launched(be, "column_sums");
}

void cuda_column_sums(struct backend *be, const struct column_sums_args *args) {
    cuda_sum_columns(be, args, backend_workspace(be, cuda_column_sums_scratch(be, args)));
}
