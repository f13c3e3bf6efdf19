/* Storage types on the device: fp32 arithmetic on values kept as fp32, fp16 or bf16.
 *
 * Kernels are templates over the storage type; STORAGE_SWITCH selects the instance in the launcher:
 *
 *     STORAGE_SWITCH(out->dtype, T, LAUNCH(cast_kernel<T>, ...));
 *
 * Memory moves in packs of 8 values: one access of 16 bytes in 16 bit, two in fp32. */
#pragma once

#include <assert.h>
#include <stddef.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/plain_c.h"

enum { PACK = 8 };

/* Runs the statement with T as the storage type of `kind`: fp32, fp16 or bf16. */
#define STORAGE_SWITCH(kind, T, ...) \
    do {                             \
        switch (kind) {              \
        case DTYPE_F32: {            \
            typedef float T;         \
            __VA_ARGS__;             \
        } break;                     \
        case DTYPE_F16: {            \
            typedef __half T;        \
            __VA_ARGS__;             \
        } break;                     \
        case DTYPE_BF16: {           \
            typedef __nv_bfloat16 T; \
            __VA_ARGS__;             \
        } break;                     \
        default: assert(!"codes");   \
        }                            \
    } while (0)

static __device__ __forceinline__ float widen(float value) {
    return value;
}
static __device__ __forceinline__ float widen(__half value) {
    return __half2float(value);
}
static __device__ __forceinline__ float widen(__nv_bfloat16 value) {
    return __bfloat162float(value);
}

/* Rounds to nearest, ties to even; overflow becomes infinity. */
template <typename T> static __device__ __forceinline__ T narrow(float value);
template <> __device__ __forceinline__ float narrow<float>(float value) {
    return value;
}
template <> __device__ __forceinline__ __half narrow<__half>(float value) {
    return __float2half_rn(value);
}
template <> __device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
    return __float2bfloat16_rn(value);
}

/* Returns the value as it is after a store as T. */
template <typename T> static __device__ __forceinline__ float rounded(float value) {
    return widen(narrow<T>(value));
}

/* Load or store PACK values; `from` and `to` are multiples of 16 bytes, also in fp32. */
static __device__ __forceinline__ void load_pack(float *values, const float *from) {
    float4 low = ((const float4 *)from)[0], high = ((const float4 *)from)[1];
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}
template <typename T>
static __device__ __forceinline__ void load_pack(float *values, const T *from) {
    union {
        uint4 bits;
        uint16_t at[PACK];
    } pack;
    pack.bits = *(const uint4 *)from;
    for (int i = 0; i < PACK; i++) {
        T value;
        memcpy((void *)&value, &pack.at[i], sizeof value);
        values[i] = widen(value);
    }
}

static __device__ __forceinline__ void store_pack(float *to, const float *values) {
    ((float4 *)to)[0] = make_float4(values[0], values[1], values[2], values[3]);
    ((float4 *)to)[1] = make_float4(values[4], values[5], values[6], values[7]);
}
template <typename T>
static __device__ __forceinline__ void store_pack(T *to, const float *values) {
    union {
        uint4 bits;
        uint16_t at[PACK];
    } pack;
    for (int i = 0; i < PACK; i++) {
        T value = narrow<T>(values[i]);
        memcpy(&pack.at[i], &value, sizeof value);
    }
    *(uint4 *)to = pack.bits;
}

/* Load or store up to PACK values, element by element: ends of rows, and unaligned rows. */
template <typename T>
static __device__ __forceinline__ void load_some(float *values, const T *from, int count) {
    for (int i = 0; i < PACK; i++) values[i] = i < count ? widen(from[i]) : 0;
}
template <typename T>
static __device__ __forceinline__ void store_some(T *to, const float *values, int count) {
    for (int i = 0; i < PACK; i++)
        if (i < count) to[i] = narrow<T>(values[i]);
}

/* True if packs can be read from the start of every row. */
static inline bool rows_are_packed(const struct tensor *tensor) {
    return (uintptr_t)tensor->data % 16 == 0 && tensor_columns(tensor) % PACK == 0;
}
