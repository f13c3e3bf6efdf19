/* The second half of sums over rows: partial sums of groups of rows, added up in order.
 *
 * The first half splits the rows into groups by the shape alone, never by the number of
 * multiprocessors, so that the same sums come out on every GPU. */
#pragma once

#include "kernels/cuda/columns.h"

enum { PARTIAL_WARPS = 16 };

/* One column per lane. Warp w adds groups w, w + 16, ..., so that many loads are in flight; then
 * the warps' sums are added in order. */
static __global__ void __launch_bounds__(PARTIAL_WARPS *WARP)
    add_partials_kernel(struct array first, struct array second, const float *__restrict__ partials,
                        int groups, int64_t columns, int64_t stride) {
    __shared__ float part[PARTIAL_WARPS][WARP];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t column = (int64_t)blockIdx.x * WARP + lane;
    float sum = 0;
    if (column < stride) {
#pragma unroll 8
        for (int group = warp; group < groups; group += PARTIAL_WARPS)
            sum += partials[group * stride + column];
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= stride) return;
    for (int i = 1; i < PARTIAL_WARPS; i++) sum += part[i][lane];
    const struct array out = column < columns ? first : second;
    int64_t at = column < columns ? column : column - columns;
    STORAGE_SWITCH(out.dtype, T, {
        T *place = (T *)out.data + at;
        *place = narrow<T>(widen(*place) + sum);
    });
}

/* first += the sums over groups of partials [groups, columns]; with second,
 * of [groups, 2, columns], where second takes the other half. */
static void add_partials(struct backend *be, const struct tensor *first,
                         const struct tensor *second, const float *partials, int64_t groups) {
    int64_t columns = tensor_count(first), stride = second ? 2 * columns : columns;
    LAUNCH(add_partials_kernel, (unsigned)blocks_of(stride, WARP), PARTIAL_WARPS * WARP, 0,
           cuda_state(be)->compute, array_of(first), array_of(second), partials, (int)groups,
           columns, stride);
}
