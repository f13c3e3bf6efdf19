#include "kernels/dtype.h"

#include <assert.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include "kernels/float8.h"

static const struct {
    const char *name;
    size_t bits;
} dtypes[DTYPE_ALL_COUNT] = {
#define X(NAME, name, bits, ...) {name, bits},
    DTYPES(X) DTYPES_QUANTIZED(X) DTYPES_CODES(X)
#undef X
};

size_t dtype_bytes(enum dtype dtype) {
    return dtype_size(dtype, 1);
}

size_t dtype_size(enum dtype dtype, int64_t count) {
    size_t bits = (size_t)count * dtypes[dtype].bits;
    assert(bits % 8 == 0);
    return bits / 8;
}

const char *dtype_name(enum dtype dtype) {
    return dtypes[dtype].name;
}

/* AVX512_BF16 has an instruction for this, but it flushes subnormals to zero; three integer
 * operations round them like other values, and vectorize as well. */
uint16_t bf16_from_f32(float value) {
    uint32_t bits = f32_bits(value);
    uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
    uint32_t quiet_nan = bits | 0x400000;
    return (uint16_t)(((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded) >> 16);
}

float f32_from_f16(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, magnitude = bits & 0x7fff;
    if (magnitude >= 0x7c00) { /* infinity or NaN; NaN becomes quiet, as with F16C */
        uint32_t quiet = magnitude > 0x7c00 ? 0x400000 : 0;
        return f32_of_bits(sign | 0x7f800000 | quiet | (magnitude & 0x3ff) << 13);
    }
    /* The shifted exponent field is 112 too small; the product corrects it exactly, and also
     * normalizes subnormals. */
    return f32_of_bits(sign | f32_bits(f32_of_bits(magnitude << 13) * 0x1p112f));
}

uint16_t f16_from_f32(float value) {
    uint32_t bits = f32_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and up */
    if (magnitude < 0x38800000) /* subnormal: adding 1/2 aligns the last bit kept with fp32's */
        return (uint16_t)(sign | (f32_bits(f32_of_bits(magnitude) + 0.5f) - 0x3f000000));
    uint32_t rounded = magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | rounded >> 13);
}

float dtype_f8_max(enum dtype dtype) {
    return f8_format(dtype).max;
}

float f32_from_f8(uint8_t bits, enum dtype dtype) {
    return f8_widen(bits, dtype);
}

uint8_t f8_from_f32(float value, enum dtype dtype) {
    return (uint8_t)f8_round(value, 1, dtype);
}

/* A loop for each dtype, so that the compiler knows the format. */
static void widen_f8(float *out, const uint8_t *in, enum dtype dtype, size_t count) {
#define X(NAME, ...)           \
    if (dtype == DTYPE_##NAME) \
        for (size_t i = 0; i < count; i++) out[i] = f8_widen(in[i], DTYPE_##NAME);
    DTYPES_QUANTIZED(X)
#undef X
}

void dtype_store_f8(uint8_t *codes, enum dtype dtype, const float *values, float scale,
                    size_t count) {
#define X(NAME, ...)                       \
    if (dtype == DTYPE_##NAME)             \
        for (size_t i = 0; i < count; i++) \
            codes[i] = (uint8_t)f8_round(values[i], scale, DTYPE_##NAME);
    DTYPES_QUANTIZED(X)
#undef X
}

static void widen_f16(float *out, const uint16_t *in, size_t count) {
    size_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= count; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(in + i))));
#endif
    for (; i < count; i++) out[i] = f32_from_f16(in[i]);
}

static void widen_bf16(float *out, const uint16_t *in, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = f32_from_bf16(in[i]);
}

static void store_bf16(uint16_t *out, const float *in, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = bf16_from_f32(in[i]);
}

static void store_f16(uint16_t *out, const float *in, size_t count) {
    size_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= count; i += 8)
        _mm_storeu_si128((void *)(out + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < count; i++) out[i] = f16_from_f32(in[i]);
}

const float *dtype_widen(float *buffer, const void *data, enum dtype dtype, size_t offset,
                         size_t count) {
    switch (dtype) {
    case DTYPE_F32: return (const float *)data + offset;
    case DTYPE_F16: widen_f16(buffer, (const uint16_t *)data + offset, count); break;
    case DTYPE_BF16: widen_bf16(buffer, (const uint16_t *)data + offset, count); break;
    default:
        assert(dtype_is_f8(dtype));
        widen_f8(buffer, (const uint8_t *)data + offset, dtype, count);
    }
    return buffer;
}

void dtype_store(void *data, enum dtype dtype, size_t offset, const float *values, size_t count) {
    switch (dtype) {
    case DTYPE_F32: memmove((float *)data + offset, values, count * sizeof *values); break;
    case DTYPE_F16: store_f16((uint16_t *)data + offset, values, count); break;
    case DTYPE_BF16: store_bf16((uint16_t *)data + offset, values, count); break;
    default:
        assert(dtype_is_f8(dtype));
        dtype_store_f8((uint8_t *)data + offset, dtype, values, 1, count);
    }
}
