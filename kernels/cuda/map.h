/* Passes over flat arrays whose elements do not depend on each other:
 *
 *     out[i] = f(in[i], second[i]), rounded once
 *
 * A map is a struct with the parameters of f, the number of CHUNKS that a thread takes, TRACKS
 * (true if it may track the amax of out), IN_PLACE (true if out may be in: a thread reads its
 * inputs before it writes there), and a function that replaces N neighbouring values, of which the
 * first is element `at`:
 *
 *     template <int N> void apply(const struct MAP &, float (&values)[N], const float (&second)[N],
 *                                 int64_t at);
 */
#pragma once

#include "kernels/cuda/amax.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/flat.h"

enum { MAP_THREADS = 256 };

/* Type of the second input of a map that has none. */
struct nothing {};

/* Addresses of arrays that may be the same, or are not. */
template <typename T, bool SAME> struct address { typedef T *type; };
template <typename T> struct address<T, false> { typedef T *__restrict__ type; };

/* Called by each thread first, for maps with parameters in device memory. */
template <typename Map> static __device__ __forceinline__ void begin(Map &) {}

template <bool WHOLE, bool TRACKS, int N, typename Map, typename Out, typename In, typename Second>
static __device__ __forceinline__ void map_share(const Map &map, Out *out, const In *in,
                                                 const Second *second, int64_t first, int64_t count,
                                                 struct amax *track_amax) {
    struct magnitudes own = {0, 0};
    float values[Map::CHUNKS][N], seconds[Map::CHUNKS][N];
    int64_t at = first + (int64_t)threadIdx.x * N;
#pragma unroll
    for (int c = 0; c < Map::CHUNKS; c++) {
        int64_t i = at + c * MAP_THREADS * N;
        load_flat<WHOLE, N>(values[c], in + i, count - i);
        if constexpr (sizeof(Second) > 1) load_flat<WHOLE, N>(seconds[c], second + i, count - i);
    }
#pragma unroll
    for (int c = 0; c < Map::CHUNKS; c++) {
        int64_t i = at + c * MAP_THREADS * N;
        apply(map, values[c], seconds[c], i);
        store_flat<WHOLE, N>(out + i, values[c], count - i);
        if (TRACKS) track_stored<Out, N>(&own, values[c]);
    }
    if (TRACKS) merge_amax(track_amax, own);
}

template <bool TRACKS, typename Map, typename Out, typename In, typename Second>
static __global__ void __launch_bounds__(MAP_THREADS)
    map_kernel(Map map, typename address<Out, Map::IN_PLACE>::type out,
               typename address<const In, Map::IN_PLACE>::type in,
               const Second *__restrict__ second, int64_t count, bool aligned,
               struct amax *track_amax) {
    constexpr int N = chunk_values(sizeof(Out), sizeof(In), sizeof(Second));
    constexpr int SHARE = MAP_THREADS * Map::CHUNKS * N;
    int64_t first = (int64_t)blockIdx.x * SHARE;
    begin(map);
    if (aligned && first + SHARE <= count)
        map_share<true, TRACKS, N>(map, out, in, second, first, count, track_amax);
    else map_share<false, TRACKS, N>(map, out, in, second, first, count, track_amax);
}

template <typename Out, typename In, typename Second, typename Map>
static void map_arrays(struct backend *be, const Map &map, const struct tensor *out,
                       const struct tensor *in, const void *second, struct amax *track_amax) {
    constexpr int N = chunk_values(sizeof(Out), sizeof(In), sizeof(Second));
    int64_t count = tensor_count(out);
    bool aligned = aligned_to(out->data, N * sizeof(Out)) && aligned_to(in->data, N * sizeof(In)) &&
                   aligned_to(second, N * sizeof(Second));
    LAUNCH((Map::TRACKS && track_amax ? map_kernel<Map::TRACKS, Map, Out, In, Second>
                                      : map_kernel<false, Map, Out, In, Second>),
           (unsigned)blocks_of(count, MAP_THREADS * Map::CHUNKS * N), MAP_THREADS, 0,
           cuda_state(be)->compute, map, (Out *)out->data, (const In *)in->data,
           (const Second *)second, count, aligned, track_amax);
}

/* out = map(in), where in has as many elements. */
template <typename Map>
static void map_tensor(struct backend *be, const Map &map, const struct tensor *out,
                       const struct tensor *in, struct amax *track_amax) {
    assert(tensor_count(in) == tensor_count(out));
    if (tensor_count(out) == 0) return;
    STORAGE_SWITCH(
        out->dtype, Out,
        STORAGE_SWITCH(in->dtype, In,
                       (map_arrays<Out, In, struct nothing>(be, map, out, in, NULL, track_amax))));
}
