/* Storage types of tensors, and the roundings between them.
 *
 * Arithmetic is fp32 everywhere; fp16 and bf16 exist in memory only. A 16-bit value is widened
 * exactly on load and rounded to nearest, ties to even, on store; overflow rounds to infinity,
 * subnormals are kept, NaN stays NaN (quiet, with a truncated payload). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype_list.h"
#include "kernels/host_device.h"

/* True if elements are codes: all dtypes but fp32, fp16 and bf16. */
static inline int dtype_is_quantized(enum dtype dtype) {
    return (int)dtype >= (int)DTYPE_COUNT;
}

/* True for the 8-bit floats, E4M3 and E5M2. */
static inline int dtype_is_f8(enum dtype dtype) {
    return dtype == DTYPE_E4M3 || dtype == DTYPE_E5M2;
}

/* Returns the bytes of an element, which has whole bytes. */
size_t dtype_bytes(enum dtype dtype);

/* Returns the bytes of `count` elements, which fill whole bytes. */
size_t dtype_size(enum dtype dtype, int64_t count);

const char *dtype_name(enum dtype dtype); /* "fp32", "e4m3": see kernels/dtype_list.h */

/* Inline, so that loops over it vectorize. */
static ON_HOST_AND_DEVICE float f32_from_bf16(uint16_t bits) {
    return f32_of_bits((uint32_t)bits << 16);
}

float f32_from_f16(uint16_t bits);
uint16_t f16_from_f32(float value);
uint16_t bf16_from_f32(float value);

/* Conversions of the 8-bit floats. Finite values saturate at the largest; values that are not
 * finite become NaN in E4M3 and are kept in E5M2. */
float f32_from_f8(uint8_t bits, enum dtype dtype);
uint8_t f8_from_f32(float value, enum dtype dtype);
float dtype_f8_max(enum dtype dtype);

/* Stores count values times scale as 8-bit floats. */
void dtype_store_f8(uint8_t *codes, enum dtype dtype, const float *values, float scale,
                    size_t count);

/* Reads count values of fp32, fp16, bf16 or 8-bit floats, starting at element `offset` of data, as
 * fp32. Returns a pointer into data if it is fp32, else fills buffer and returns it. */
const float *dtype_widen(float *buffer, const void *data, enum dtype dtype, size_t offset,
                         size_t count);

/* Stores count fp32 values at element `offset` of data, rounding to its dtype, one of the same. */
void dtype_store(void *data, enum dtype dtype, size_t offset, const float *values, size_t count);
