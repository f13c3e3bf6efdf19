/* Qualifier of inline functions that both backends use, in headers of C and CUDA:
 *
 *     static ON_HOST_AND_DEVICE int f(int x) { ... } */
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define ON_HOST_AND_DEVICE __host__ __device__ __forceinline__
#else
#define ON_HOST_AND_DEVICE inline
#endif

static ON_HOST_AND_DEVICE uint32_t f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static ON_HOST_AND_DEVICE float f32_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
