/* Shared by the gradients of attention on Hopper's tensor cores: of heads of 64 and 128 values
 * (attention_wgmma_backward.cu), and of 256 (attention_wgmma_wide.cu). */
#pragma once

#include "kernels/cuda/attention/attention_hopper_backward.h"
#include "kernels/cuda/attention/attention_wgmma.h"

static __device__ __forceinline__ int warp_in_group() {
    return (int)threadIdx.x % GROUP_THREADS / WARP;
}

/* Replaces s by P', for the queries of tile `tile` of 64; a thread's columns are queries. */
template <typename T, bool LIMITED>
static __device__ __forceinline__ void probabilities(float s[GROUP_SUMS], const struct backward &b,
                                                     const struct query_values *values, int batch,
                                                     int key, int tile) {
    const float *x = values->x + threadIdx.x % 4 * 2;
    float factor = b.factor;
    int behind = key - tile * GROUP_ROWS;
    if (behind >= 0) mask<true>(s, behind + warp_in_group() * 16);
    if (LIMITED)
        mask_before<true>(s, b.first_keys + (int64_t)batch * b.sequence, b.sequence - 1,
                          tile * GROUP_ROWS, key + warp_in_group() * 16);
#pragma unroll
    for (int i = 0; i < GROUP_SUMS; i += 4) {
        float2 pair = *(const float2 *)(x + i * 2);
#pragma unroll
        for (int j = i; j < i + 4; j++)
            s[j] = exp2_approx(fmaf(s[j], factor, j % 2 ? pair.y : pair.x));
    }
}

/* Replaces ds, which is dP', by dS'. */
static __device__ __forceinline__ void score_gradients(float ds[GROUP_SUMS],
                                                       const float p[GROUP_SUMS],
                                                       const struct query_values *values) {
    const float *delta = values->delta + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < GROUP_SUMS; i += 4) {
        float2 pair = *(const float2 *)(delta + i * 2);
#pragma unroll
        for (int j = i; j < i + 4; j++) ds[j] = p[j] * (ds[j] - (j % 2 ? pair.y : pair.x));
    }
}

/* Destination of the sums of 16 rows, from a column on, or NULL without column sums. rows: their
 * index among the SUM_WARPS of the tile. */
static __device__ __forceinline__ float *sums_place(const struct backward &b, struct held of,
                                                    int rows, int64_t column) {
    if (!b.sums) return NULL;
    int64_t row = (int64_t)(of.batch * b.tiles + of.tile) * SUM_WARPS + rows;
    return b.sums + row * b.stride + column;
}
