/* Values of stored weights. All elements of a block with the same code have the same value, so a
 * block takes one product for each code, and its elements are lookups in them. The limit is memory
 * bandwidth for 4-bit codes. */
#include <assert.h>
#ifdef __SSSE3__
#include <tmmintrin.h>
#endif

#include "kernels/code_value.h"
#include "kernels/cpu/cpu.h"

/* A stored matrix with the values of its codes. */
struct stored {
    const struct quantized_weight *weight;
    float values[256], scale_values[256];
    int codes; /* number of codes of an element */
};

static void list_values(struct stored *stored, const struct quantized_weight *weight) {
    static const float nf4[] = NF4_VALUES;
    stored->weight = weight;
    stored->codes = weight->codes.dtype == DTYPE_NF4 ? 16 : 256;
    for (int code = 0; code < stored->codes; code++)
        stored->values[code] =
            stored->codes == 16 ? nf4[code] : f32_from_f8((uint8_t)code, weight->codes.dtype);
    for (uint32_t code = 0; weight->second_block && code < 256; code++)
        stored->scale_values[code] = dynamic8_value(code);
}

static float scale_of(const struct stored *stored, int64_t block) {
    const struct quantized_weight *w = stored->weight;
    if (w->second_block == 0) return ((const float *)w->scales.data)[block];
    float value = stored->scale_values[((const uint8_t *)w->scales.data)[block]];
    return value *
               ((const float *)w->second_scales.data)[(uint32_t)block / (uint32_t)w->second_block] +
           *(const float *)w->mean.data;
}

/* Table lookups by shuffling bytes: the lower and the upper byte of 16 elements each. */
static void look_up_16(uint16_t *out, const uint8_t *codes, const uint16_t table[16],
                       int64_t count) {
    int64_t i = 0;
#ifdef __SSSE3__
    const __m128i low4 = _mm_set1_epi8(15), low8 = _mm_set1_epi16(255);
    const __m128i first = _mm_loadu_si128((const __m128i *)table),
                  last = _mm_loadu_si128((const __m128i *)table + 1);
    const __m128i lower = _mm_packus_epi16(_mm_and_si128(first, low8), _mm_and_si128(last, low8));
    const __m128i upper = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(last, 8));
    for (; i + 32 <= count; i += 32) {
        __m128i pairs = _mm_loadu_si128((const __m128i *)(codes + i / 2));
        __m128i even = _mm_and_si128(_mm_srli_epi16(pairs, 4), low4),
                odd = _mm_and_si128(pairs, low4);
        for (int half = 0; half < 2; half++) {
            __m128i at = half ? _mm_unpackhi_epi8(even, odd) : _mm_unpacklo_epi8(even, odd);
            __m128i a = _mm_shuffle_epi8(lower, at), b = _mm_shuffle_epi8(upper, at);
            _mm_storeu_si128((__m128i *)(out + i + 16 * half), _mm_unpacklo_epi8(a, b));
            _mm_storeu_si128((__m128i *)(out + i + 16 * half + 8), _mm_unpackhi_epi8(a, b));
        }
    }
#endif
    for (; i < count; i++) out[i] = table[codes[i / 2] >> (i % 2 ? 0 : 4) & 15];
}

static void look_up_32(uint32_t *out, const uint8_t *codes, const uint32_t table[16],
                       int64_t count) {
    for (int64_t i = 0; i < count; i++) out[i] = table[codes[i / 2] >> (i % 2 ? 0 : 4) & 15];
}

/* Stores elements first .. first + count - 1, which share a scale. The first is even. */
static void store_4_bit(const struct stored *stored, const struct tensor *out, int64_t first,
                        int64_t count, float scale) {
    const uint8_t *codes = (const uint8_t *)stored->weight->codes.data + first / 2;
    float products[16];
    union {
        uint32_t of_32[16];
        uint16_t of_16[16];
    } table;
    for (int i = 0; i < 16; i++) products[i] = stored->values[i] * scale;
    dtype_store(&table, out->dtype, 0, products, 16);
    if (out->dtype == DTYPE_F32)
        look_up_32((uint32_t *)out->data + first, codes, table.of_32, count);
    else look_up_16((uint16_t *)out->data + first, codes, table.of_16, count);
}

static void store_8_bit(const struct stored *stored, const struct tensor *out, int64_t first,
                        int64_t count, float scale) {
    const uint8_t *codes = (const uint8_t *)stored->weight->codes.data + first;
    float products[256];
    union {
        uint32_t of_32[256];
        uint16_t of_16[256];
    } table;
    for (int i = 0; i < 256; i++) products[i] = stored->values[i] * scale;
    dtype_store(&table, out->dtype, 0, products, 256);
    uint32_t *out_32 = (uint32_t *)out->data + first;
    uint16_t *out_16 = (uint16_t *)out->data + first;
    if (out->dtype == DTYPE_F32)
        for (int64_t i = 0; i < count; i++) out_32[i] = table.of_32[codes[i]];
    else
        for (int64_t i = 0; i < count; i++) out_16[i] = table.of_16[codes[i]];
}

void cpu_dequantize(struct backend *be, const struct dequantize_args *args) {
    (void)be;
    const struct quantized_weight *w = args->in;
    struct stored stored;
    list_values(&stored, w);
    assert(tensor_count(args->out) == w->count && !dtype_is_quantized(args->out->dtype));
    assert(stored.codes == 256 || w->block % 2 == 0);
#pragma omp parallel for schedule(static)
    for (int64_t share = 0; share < blocks_of(w->count, CPU_FLAT_BLOCK); share++) {
        int64_t at = share * CPU_FLAT_BLOCK, end = at + block_length(at, w->count, CPU_FLAT_BLOCK);
        for (int64_t block = at / w->block; at < end; block++) {
            int64_t left = (block + 1) * w->block - at, n = end - at < left ? end - at : left;
            float scale = scale_of(&stored, block);
            if (stored.codes == 16) store_4_bit(&stored, args->out, at, n, scale);
            else store_8_bit(&stored, args->out, at, n, scale);
            at += n;
        }
    }
}
