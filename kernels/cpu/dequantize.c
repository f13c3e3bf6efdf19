/* Values of stored weights. All elements of a block with the same code have the same value, so a
 * block takes one product for each code, and its elements are lookups in them. The limit is memory
 * bandwidth for 4-bit codes. */
#include <assert.h>
#ifdef __SSSE3__
#include <immintrin.h>
#endif

#include "kernels/code_value.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dequantize.h"

void stored_values_list(struct stored_values *stored, const struct quantized_weight *weight) {
    static const float nf4[] = NF4_VALUES;
    stored->weight = weight;
    stored->codes = weight->codes.dtype == DTYPE_NF4 ? 16 : 256;
    for (int code = 0; code < stored->codes; code++)
        stored->values[code] =
            stored->codes == 16 ? nf4[code] : f32_from_f8((uint8_t)code, weight->codes.dtype);
    for (uint32_t code = 0; weight->second_block && code < 256; code++)
        stored->scale_values[code] = dynamic8_value(code);
}

static float scale_of(const struct stored_values *stored, int64_t block) {
    const struct quantized_weight *w = stored->weight;
    if (w->second_block == 0) return ((const float *)w->scales.data)[block];
    float value = stored->scale_values[((const uint8_t *)w->scales.data)[block]];
    return value *
               ((const float *)w->second_scales.data)[(uint32_t)block / (uint32_t)w->second_block] +
           *(const float *)w->mean.data;
}

#ifdef __AVX512BW__
/* Looks up whole groups of 32 codes of 4 bits; returns the number of elements. */
static inline int64_t look_up_words(uint16_t *out, const uint8_t *codes, __m512i table,
                                    int64_t count) {
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(codes + i / 2)));
        __m512i odd = _mm512_and_si512(_mm512_slli_epi32(bytes, 16), _mm512_set1_epi32(0xf0000));
        __m512i at = _mm512_or_si512(_mm512_srli_epi32(bytes, 4), odd);
        _mm512_storeu_si512(out + i, _mm512_permutexvar_epi16(at, table));
    }
    return i;
}

/* Writes `blocks` whole blocks of 4-bit codes in bf16, each with its values in a register. */
static void write_blocks(const struct stored_values *stored, uint16_t *out, int64_t block,
                         int64_t blocks) {
    const int64_t size = stored->weight->block;
    const uint8_t *codes = (const uint8_t *)stored->weight->codes.data + block * size / 2;
    const __m512 values = _mm512_loadu_ps(stored->values);
    for (; blocks > 0; blocks--, block++, codes += size / 2, out += size) {
        const __m512 scale = _mm512_set1_ps(scale_of(stored, block));
        __m512i bits = _mm512_castps_si512(_mm512_mul_ps(values, scale));
        __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        bits = _mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
        look_up_words(out, codes, bits, size);
    }
}
#endif

/* Table lookups by shuffling words or, before AVX-512, the lower and the upper bytes of 16 elements
 * each. */
static void look_up_16(uint16_t *out, const uint8_t *codes, const uint16_t table[16],
                       int64_t count) {
    int64_t i = 0;
#ifdef __AVX512BW__
    __m256i words = _mm256_loadu_si256((const void *)table);
    i = look_up_words(out, codes, _mm512_castsi256_si512(words), count);
#elif defined __SSSE3__
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

/* The same for codes of 8 bits, the first of which is the sign. */
static void look_up_signed(uint16_t *out, const uint8_t *codes, const uint16_t table[256],
                           int64_t count) {
    int64_t i = 0;
#ifdef __AVX512BW__
    __m512i values[4];
    for (int j = 0; j < 4; j++) values[j] = _mm512_loadu_si512(table + 32 * j);
    for (; i + 32 <= count; i += 32) {
        __m512i at = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)(codes + i)));
        __m512i low = _mm512_permutex2var_epi16(values[0], at, values[1]);
        __m512i high = _mm512_permutex2var_epi16(values[2], at, values[3]);
        __m512i sign = _mm512_and_si512(_mm512_slli_epi16(at, 8), _mm512_set1_epi16(-0x8000));
        __mmask32 large = _mm512_test_epi16_mask(at, _mm512_set1_epi16(64));
        _mm512_storeu_si512(out + i,
                            _mm512_xor_si512(_mm512_mask_blend_epi16(large, low, high), sign));
    }
#endif
    for (; i < count; i++) out[i] = table[codes[i]];
}

static void look_up_32(uint32_t *out, const uint8_t *codes, const uint32_t table[16],
                       int64_t count) {
    for (int64_t i = 0; i < count; i++) out[i] = table[codes[i / 2] >> (i % 2 ? 0 : 4) & 15];
}

/* Values of all codes of one block, or of several, in the dtype of the output. */
enum { VALUES = 256 };
union table {
    uint32_t of_32[VALUES];
    uint16_t of_16[VALUES];
};

/* Writes `count` elements from `first` on, whose values begin at value `at` of the table. */
static void look_up(const struct stored_values *stored, bool wide, void *out, int64_t first,
                    int64_t count, const union table *table, int64_t at) {
    const uint8_t *codes = stored->weight->codes.data;
    uint32_t *out_32 = out;
    uint16_t *out_16 = out;
    codes += stored->codes == 16 ? first / 2 : first;
    if (stored->codes == 16 && wide) look_up_32(out_32, codes, table->of_32 + at, count);
    else if (stored->codes == 16) look_up_16(out_16, codes, table->of_16 + at, count);
    else if (wide)
        for (int64_t i = 0; i < count; i++) out_32[i] = table->of_32[codes[i]];
    else look_up_signed(out_16, codes, table->of_16, count);
}

/* As many blocks as fit in a table are rounded in one call. */
void stored_values_write(const struct stored_values *stored, enum dtype dtype, void *out,
                         int64_t first, int64_t end) {
    const int64_t size = stored->weight->block, last = (end - 1) / size, codes = stored->codes;
    float products[VALUES];
    union table table;
    char *at = out;
#ifdef __AVX512BW__
    if (codes == 16 && dtype == DTYPE_BF16 && first % size == 0 && size % 32 == 0) {
        const int64_t whole = (end - first) / size;
        write_blocks(stored, out, first / size, whole);
        first += whole * size, at += dtype_size(dtype, whole * size);
    }
    if (first == end) return;
#endif
    for (int64_t block = first / size, blocks; block <= last; block += blocks) {
        blocks = block_length(block, last + 1, VALUES / codes);
        for (int64_t b = 0; b < blocks; b++) {
            const float scale = scale_of(stored, block + b);
            for (int64_t i = 0; i < codes; i++) products[b * codes + i] = stored->values[i] * scale;
        }
        dtype_store(&table, dtype, 0, products, (size_t)(blocks * codes));
        for (int64_t b = 0, n; b < blocks; b++, first += n) {
            n = block_length(first, end, (block + b + 1) * size - first);
            look_up(stored, dtype == DTYPE_F32, at, first, n, &table, b * codes);
            at += dtype_size(dtype, n);
        }
    }
}

void cpu_dequantize(struct backend *be, const struct dequantize_args *args) {
    (void)be;
    const struct quantized_weight *w = args->in;
    struct stored_values stored;
    stored_values_list(&stored, w);
    assert(tensor_count(args->out) == w->count && !dtype_is_quantized(args->out->dtype));
    assert(stored.codes == 256 || w->block % 2 == 0);
#pragma omp parallel for schedule(static)
    for (int64_t share = 0; share < blocks_of(w->count, CPU_FLAT_BLOCK); share++) {
        int64_t at = share * CPU_FLAT_BLOCK, end = at + block_length(at, w->count, CPU_FLAT_BLOCK);
        char *out = (char *)args->out->data + dtype_size(args->out->dtype, at);
        stored_values_write(&stored, args->out->dtype, out, at, end);
    }
}
