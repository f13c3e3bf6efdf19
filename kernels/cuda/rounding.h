/* Master weights and their copies on the device, as in kernels/rounding.h. */
#pragma once

#include "kernels/cuda/storage.h"

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
