/* Master weights and their copies on the device, as in kernels/rounding.h. */
#pragma once

#include "kernels/cuda/flat.h"

/* bf16 rounded like master weights: to nearest, ties away from zero. */
struct bf16_copy {
    uint16_t bits;
};

static __device__ __forceinline__ float widen(struct bf16_copy value) {
    return __uint_as_float((uint32_t)value.bits << 16);
}

template <> __device__ __forceinline__ struct bf16_copy narrow<struct bf16_copy>(float value) {
    struct bf16_copy copy = {(uint16_t)upper_half(__float_as_uint(value))};
    return copy;
}

/* Upper half of a split master weight; a type of its own, distinct from bf16 values. */
struct upper_bits {
    uint16_t bits;
};

/* Load or store N master weights as fp32, from `at` on: fp32 ones, or split ones, which have a
 * remainder. */
template <bool WHOLE, int N>
static __device__ __forceinline__ void load_masters(float *values, const float *master,
                                                    const uint16_t *, int64_t at, int64_t left) {
    load_flat<WHOLE, N>(values, master + at, left);
}

template <bool WHOLE, int N>
static __device__ __forceinline__ void load_masters(float *values, const struct upper_bits *master,
                                                    const uint16_t *remainder, int64_t at,
                                                    int64_t left) {
    uint32_t upper[N], lower[N];
    load_bits<WHOLE, N>(upper, &master[at].bits, left);
    load_bits<WHOLE, N>(lower, remainder + at, left);
    for (int i = 0; i < N; i++)
        values[i] = __uint_as_float(joined_bits((uint16_t)upper[i], (int16_t)lower[i]));
}

template <bool WHOLE, int N>
static __device__ __forceinline__ void store_masters(const float *values, float *master, uint16_t *,
                                                     int64_t at, int64_t left) {
    store_flat<WHOLE, N>(master + at, values, left);
}

template <bool WHOLE, int N>
static __device__ __forceinline__ void store_masters(const float *values, struct upper_bits *master,
                                                     uint16_t *remainder, int64_t at,
                                                     int64_t left) {
    uint32_t upper[N], lower[N];
    for (int i = 0; i < N; i++) {
        uint32_t bits = __float_as_uint(values[i]);
        upper[i] = upper_half(bits);
        lower[i] = (uint16_t)remainder_of(bits);
    }
    store_bits<WHOLE, N>(&master[at].bits, upper, left);
    store_bits<WHOLE, N>(remainder + at, lower, left);
}
