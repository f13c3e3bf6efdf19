/* Masters and their copies on the device, as kernels/rounding.h has them. */
#pragma once

#include "kernels/cuda/storage.h"

/* bf16 that is rounded as masters are: to nearest, ties away from zero. */
struct bf16_copy {
    uint16_t bits;
};

static __device__ __forceinline__ float widen(struct bf16_copy value) {
    return __uint_as_float((uint32_t)value.bits << 16);
}

template <> __device__ __forceinline__ struct bf16_copy narrow<struct bf16_copy>(float value) {
    uint32_t bits = __float_as_uint(value), quiet_nan = bits | 0x400000u;
    bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    struct bf16_copy copy = {(uint16_t)((is_nan ? quiet_nan : bits + 0x8000u) >> 16)};
    return copy;
}

/* Of a split master; the name keeps it apart from bf16 that is a value by itself. */
struct upper_half {
    uint16_t bits;
};

/* A split master's bits of fp32. The remainder is a signed number. */
static __device__ __forceinline__ uint32_t joined(uint32_t upper, uint32_t remainder) {
    return (upper << 16) + (uint32_t)(int32_t)(int16_t)remainder;
}

static __device__ __forceinline__ void split(uint32_t *upper, uint32_t *remainder, float value) {
    uint32_t bits = __float_as_uint(value);
    bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    *upper = narrow<struct bf16_copy>(value).bits;
    *remainder = is_nan ? 0 : (bits - (*upper << 16)) & 0xffffu;
}
