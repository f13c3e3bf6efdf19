/* The second half of sums over rows: adds partial sums of groups of rows, in order.
 *
 * The first half splits the rows into groups by the shape alone, never by the number of
 * multiprocessors, so that every GPU computes the same sums. */
#pragma once

#include "kernels/cuda/columns.h"

enum { PARTIAL_WARPS = 32, SUMS_MAX = 3 };

/* Destinations of sums, [columns] each; without data a sum is dropped. */
struct sums {
    struct array at[SUMS_MAX];
    int64_t columns;
    int count;
};

static inline struct sums sums_of(const struct tensor *first) {
    struct sums sums = {{array_of(first)}, tensor_count(first), 1};
    return sums;
}

/* Adds a destination, unless it is NULL. */
static inline void sums_add(struct sums *sums, const struct tensor *further) {
    if (!further) return;
    assert(sums->count < SUMS_MAX && tensor_count(further) == sums->columns);
    sums->at[sums->count++] = array_of(further);
}

/* One column per lane. Warp w adds groups w, w + 32, ..., so that many loads are in flight; then
 * the warps' sums are added in order. */
static __global__ void __launch_bounds__(PARTIAL_WARPS *WARP)
    add_partials_kernel(struct sums sums, const float *__restrict__ partials, int groups) {
    __shared__ float part[PARTIAL_WARPS][WARP];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t column = (int64_t)blockIdx.x * WARP + lane, stride = sums.count * sums.columns;
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
    struct array out = sums.at[0];
    for (int i = 1; i < SUMS_MAX; i++)
        if (column >= i * sums.columns) out = sums.at[i];
    if (!out.data) return;
    int64_t at = column % sums.columns;
    STORAGE_SWITCH(out.dtype, T, {
        T *element = (T *)out.data + at;
        *element = narrow<T>(widen(*element) + sum);
    });
}

/* sums += sums over groups of partials [groups, count of sums, columns]. */
static void add_partials(struct backend *be, const struct sums *sums, const float *partials,
                         int64_t groups) {
    LAUNCH(add_partials_kernel, (unsigned)blocks_of(sums->count * sums->columns, WARP),
           PARTIAL_WARPS * WARP, 0, cuda_state(be)->compute, *sums, partials, (int)groups);
}
