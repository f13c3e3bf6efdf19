/* Storage types of tensors, and the roundings between them.
 *
 * Arithmetic is fp32 everywhere; fp16 and bf16 exist in memory only. A 16-bit value is widened
 * exactly on load and rounded to nearest, ties to even, on store; overflow rounds to infinity,
 * subnormals are kept, NaN stays NaN (quiet, its payload cut). */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Each dtype, once: X(NAME, the field's name, bytes, the name in config.json of Hugging Face's
 * models, that of cuBLAS). Safetensors calls it NAME. */
#define DTYPES(X)                            \
    X(F32, "fp32", 4, "float32", CUDA_R_32F) \
    X(F16, "fp16", 2, "float16", CUDA_R_16F) \
    X(BF16, "bf16", 2, "bfloat16", CUDA_R_16BF)

enum dtype {
#define X(NAME, ...) DTYPE_##NAME,
    DTYPES(X)
#undef X
};

#define X(...) +1
enum { DTYPE_COUNT = DTYPES(X) };
#undef X

size_t dtype_bytes(enum dtype dtype);
const char *dtype_name(enum dtype dtype); /* "fp32", "fp16", "bf16" */

/* The dtype of this name, or -1. */
int dtype_named(const char *name);

float f32_from_f16(uint16_t bits);
float f32_from_bf16(uint16_t bits);
uint16_t f16_from_f32(float value);
uint16_t bf16_from_f32(float value);

/* Reads count values of the given dtype, starting at element `offset` of data, as fp32.
 * Returns the place itself when it already holds fp32, else fills buffer and returns it. */
const float *dtype_widen(float *buffer, const void *data, enum dtype dtype, size_t offset,
                         size_t count);

/* Stores count fp32 values at element `offset` of data, rounding to its dtype. */
void dtype_store(void *data, enum dtype dtype, size_t offset, const float *values, size_t count);
