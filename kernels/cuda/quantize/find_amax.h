/* Pass over a tensor that finds its amax, for operations that scale by it. */
#pragma once

#include "kernels/cuda/amax.h"
#include "kernels/cuda/flat.h"

enum { FIND_THREADS = 256, FIND_CHUNKS = 4 };

/* Adds a tensor's amax to its record. */
static __device__ __forceinline__ void note_amax(struct quantize_record *record,
                                                 const struct amax *found) {
    record->amax = fmaxf(record->amax, __uint_as_float(found->largest));
    if (found->not_finite) record->not_finite++;
    else if (found->largest == 0) record->zero++;
}

static __device__ __forceinline__ bool is_given(const float *amax) {
    return amax && *amax > 0;
}

/* Runs after all blocks that update `found`. With an amax that was not given, round kernels have
 * recorded it. */
static __global__ void note_kernel(struct quantize_record *record, const struct amax *found,
                                   const float *amax) {
    if (!amax || is_given(amax)) note_amax(record, found);
}

template <typename T> static constexpr __host__ __device__ int values_of() {
    return chunk_values(sizeof(T));
}

template <bool WHOLE, typename T>
static __device__ __forceinline__ struct magnitudes find_share(const T *in, int64_t first,
                                                               int64_t count) {
    constexpr int N = values_of<T>();
    struct magnitudes own = {0, 0};
    float values[FIND_CHUNKS][N];
    int64_t at = first + (int64_t)threadIdx.x * N;
    for (int c = 0; c < FIND_CHUNKS; c++) {
        int64_t i = at + c * FIND_THREADS * N;
        load_flat<WHOLE, N>(values[c], in + i, count - i);
    }
    for (int c = 0; c < FIND_CHUNKS; c++)
        for (int i = 0; i < N; i++) track_value(&own, values[c][i]);
    return own;
}

/* Does nothing if the scale is given: then the kernel that rounds tracks the amax. */
template <typename T>
static __global__ void __launch_bounds__(FIND_THREADS)
    find_kernel(struct amax *found, const T *__restrict__ in, int64_t count, const float *amax,
                bool aligned) {
    constexpr int SHARE = FIND_THREADS * FIND_CHUNKS * values_of<T>();
    int64_t first = (int64_t)blockIdx.x * SHARE;
    if (is_given(amax)) return;
    merge_amax(found, aligned && first + SHARE <= count ? find_share<true>(in, first, count)
                                                        : find_share<false>(in, first, count));
}

/* Merges the amax of count values into *found, unless *amax (optional) gives another. */
template <typename T>
static void find_amax(struct amax *found, const T *in, int64_t count, const float *amax,
                      cudaStream_t stream) {
    constexpr int N = values_of<T>();
    LAUNCH(find_kernel<T>, (unsigned)blocks_of(count, FIND_THREADS * FIND_CHUNKS * N), FIND_THREADS,
           0, stream, found, in, count, amax, aligned_to(in, N * sizeof(T)));
}
