/* Passes over flat arrays: the chunks that a thread moves, and their distribution over a block.
 *
 * A thread takes chunks of N neighbours, where N values of the widest type are 16 bytes: then the
 * lanes of a warp read one contiguous piece of memory in every dtype (with 8 values of fp32 they
 * would touch each 32-byte sector twice). It takes several chunks, THREADS chunks apart, and loads
 * all before it computes: bandwidth is bytes in flight divided by latency, and an H200 needs about
 * 32 KB in flight on each multiprocessor.
 *
 * A block whose elements all exist, at aligned addresses, is WHOLE and moves chunks. Other blocks
 * (the last one, and all if a pointer is not aligned) process element by element in the same
 * code. */
#pragma once

#include "kernels/cuda/storage.h"

template <int BYTES> struct bits_of;
template <> struct bits_of<16> { typedef uint4 type; };
template <> struct bits_of<8> { typedef uint2 type; };
template <> struct bits_of<4> { typedef uint32_t type; };
template <> struct bits_of<2> { typedef uint16_t type; };

/* N values in their stored type, moved by one access; addresses are multiples of its size. */
template <typename T, int N> struct chunk { typename bits_of<N *(int)sizeof(T)>::type bits; };

template <int N, typename T>
static __device__ __forceinline__ struct chunk<T, N> load_chunk(const T *from) {
    return *(const struct chunk<T, N> *)from;
}

template <typename T, int N>
static __device__ __forceinline__ void unpack(float *values, const struct chunk<T, N> *from) {
    T at[N];
    memcpy((void *)at, &from->bits, sizeof at);
    for (int i = 0; i < N; i++) values[i] = widen(at[i]);
}

template <int N, typename T>
static __device__ __forceinline__ void store_chunk(T *to, const float *values) {
    struct chunk<T, N> moved;
    T at[N];
    for (int i = 0; i < N; i++) at[i] = narrow<T>(values[i]);
    memcpy(&moved.bits, (const void *)at, sizeof at);
    *(struct chunk<T, N> *)to = moved;
}

/* Load or store N values of an array that has `left` more. If not WHOLE, values beyond the end read
 * as 0 and are not written. */
template <bool WHOLE, int N, typename T>
static __device__ __forceinline__ void load_flat(float *values, const T *from, int64_t left) {
    if (WHOLE) {
        struct chunk<T, N> moved = load_chunk<N>(from);
        unpack(values, &moved);
    } else {
        for (int i = 0; i < N; i++) values[i] = i < left ? widen(from[i]) : 0;
    }
}

template <bool WHOLE, int N, typename T>
static __device__ __forceinline__ void store_flat(T *to, const float *values, int64_t left) {
    if (WHOLE) {
        store_chunk<N>(to, values);
    } else {
        for (int i = 0; i < N; i++)
            if (i < left) to[i] = narrow<T>(values[i]);
    }
}

/* The same for N patterns of 16 bits, each in the lower half of a word. */
template <bool WHOLE, int N>
static __device__ __forceinline__ void load_bits(uint32_t *bits, const uint16_t *from,
                                                 int64_t left) {
    if (WHOLE) {
        struct chunk<uint16_t, N> moved = load_chunk<N>(from);
        uint16_t at[N];
        memcpy((void *)at, &moved.bits, sizeof at);
        for (int i = 0; i < N; i++) bits[i] = at[i];
    } else {
        for (int i = 0; i < N; i++) bits[i] = i < left ? from[i] : 0;
    }
}

template <bool WHOLE, int N>
static __device__ __forceinline__ void store_bits(uint16_t *to, const uint32_t *bits,
                                                  int64_t left) {
    if (WHOLE) {
        struct chunk<uint16_t, N> moved;
        uint16_t at[N];
        for (int i = 0; i < N; i++) at[i] = (uint16_t)bits[i];
        memcpy(&moved.bits, (const void *)at, sizeof at);
        *(struct chunk<uint16_t, N> *)to = moved;
    } else {
        for (int i = 0; i < N; i++)
            if (i < left) to[i] = (uint16_t)bits[i];
    }
}

/* Number of values that are 16 bytes of the widest type. */
static constexpr __host__ __device__ int chunk_values(size_t bytes1, size_t bytes2 = 2,
                                                      size_t bytes3 = 2) {
    return bytes1 == 4 || bytes2 == 4 || bytes3 == 4 ? 4 : 8;
}

static inline bool aligned_to(const void *address, size_t bytes) {
    return (uintptr_t)address % bytes == 0;
}
