/* Storage types of tensors, and the roundings between them.
 *
 * Arithmetic is fp32 everywhere; fp16 and bf16 exist in memory only. A 16-bit value is widened
 * exactly on load and rounded to nearest, ties to even, on store; overflow rounds to infinity,
 * subnormals are kept, NaN stays NaN (quiet, with a truncated payload). */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Each dtype: X(NAME, name in configs, bits, name in config.json of Hugging Face's models, name in
 * cuBLAS). Safetensors uses NAME. */
#define DTYPES(X)                             \
    X(F32, "fp32", 32, "float32", CUDA_R_32F) \
    X(F16, "fp16", 16, "float16", CUDA_R_16F) \
    X(BF16, "bf16", 16, "bfloat16", CUDA_R_16BF)

/* Quantized operands of matrix products, with separate scales; never computed in and never in a
 * file. Micikevicius et al. 2022: E4M3 (its variant without infinities) and E5M2. The last column
 * is the largest value. */
#define DTYPES_QUANTIZED(X)                    \
    X(E4M3, "e4m3", 8, CUDA_R_8F_E4M3, 448.0f) \
    X(E5M2, "e5m2", 8, CUDA_R_8F_E5M2, 57344.0f)

enum dtype {
#define X(NAME, ...) DTYPE_##NAME,
    DTYPES(X) DTYPES_QUANTIZED(X)
#undef X
};

/* Lengths of the first list, and of both. */
#define X(...) +1
enum { DTYPE_COUNT = DTYPES(X), DTYPE_ALL_COUNT = DTYPE_COUNT DTYPES_QUANTIZED(X) };
#undef X

static inline int dtype_is_quantized(enum dtype dtype) {
    return (int)dtype >= (int)DTYPE_COUNT;
}

/* Returns the bytes of an element, which has whole bytes. */
size_t dtype_bytes(enum dtype dtype);

/* Returns the bytes of `count` elements, which fill whole bytes. */
size_t dtype_size(enum dtype dtype, int64_t count);

const char *dtype_name(enum dtype dtype); /* "fp32", "fp16", "bf16" */

/* Returns the dtype of this name, quantized dtypes excluded, or -1. */
int dtype_named(const char *name);

float f32_from_f16(uint16_t bits);
float f32_from_bf16(uint16_t bits);
uint16_t f16_from_f32(float value);
uint16_t bf16_from_f32(float value);

/* Conversions of the two 8-bit dtypes. Finite values saturate at the largest; values that are not
 * finite become NaN in E4M3 and are kept in E5M2. */
float f32_from_f8(uint8_t bits, enum dtype dtype);
uint8_t f8_from_f32(float value, enum dtype dtype);
float dtype_f8_max(enum dtype dtype);

/* Reads count values of the given dtype, starting at element `offset` of data, as fp32. Returns a
 * pointer into data if it is fp32, else fills buffer and returns it. */
const float *dtype_widen(float *buffer, const void *data, enum dtype dtype, size_t offset,
                         size_t count);

/* Stores count fp32 values at element `offset` of data, rounding to its dtype. */
void dtype_store(void *data, enum dtype dtype, size_t offset, const float *values, size_t count);
