#include "kernels/weight_format.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>

#include "kernels/code_value.h"
#include "kernels/float8.h"

static const struct {
    enum dtype element;
    int64_t block;
    enum dtype scale;
    int64_t second_block;
} formats[] = {
#define X(NAME, element, block, scale, second_block) \
    [WEIGHT_##NAME] = {DTYPE_##element, block, DTYPE_##scale, second_block},
    WEIGHT_FORMATS(X)
#undef X
};

static const float nf4_values[] = NF4_VALUES;

enum { STORE_BLOCK = 64, SECOND_BLOCK_MAX = 256 };

struct quantized_weight quantized_weight_take(struct arena *arena, enum weight_format format,
                                              int64_t rows, int64_t columns) {
    struct quantized_weight w = {.count = rows * columns,
                                 .block = formats[format].block ? formats[format].block : columns,
                                 .second_block = formats[format].second_block};
    int64_t blocks = blocks_of(w.count, w.block);
    w.codes = arena_tensor(arena, formats[format].element, round_up(w.count, 2), 0);
    w.scales = arena_tensor(arena, formats[format].scale, blocks, 0);
    if (!w.second_block) return w;
    w.second_scales = arena_tensor(arena, DTYPE_F32, blocks_of(blocks, w.second_block), 0);
    w.mean = arena_tensor(arena, DTYPE_F32, 1, 0);
    return w;
}

size_t quantized_weight_bytes(const struct quantized_weight *weight) {
    size_t bytes = tensor_bytes(&weight->codes) + tensor_bytes(&weight->scales);
    if (!weight->second_block) return bytes;
    return bytes + tensor_bytes(&weight->second_scales) + tensor_bytes(&weight->mean);
}

static float largest_magnitude(const float *values, int64_t count) {
    float largest = 0;
    for (int64_t i = 0; i < count; i++)
        if (fabsf(values[i]) > largest) largest = fabsf(values[i]);
    return largest;
}

/* The nearest of the 16 values for each value over its block's amax; ties go to the lower one. A
 * whole block is multiplied by the rounded inverse, and a shorter one divided, as bitsandbytes
 * does. */
static void store_nf4(uint8_t *codes, const float *values, float amax, int64_t count, bool whole) {
    const float inverse = 1 / amax;
    float bounds[15];
    for (int i = 0; i < 15; i++) bounds[i] = (nf4_values[i] + nf4_values[i + 1]) / 2;
    for (int64_t first = 0; first < count; first += STORE_BLOCK) {
        int64_t n = count - first < STORE_BLOCK ? count - first : STORE_BLOCK;
        uint32_t nearest[STORE_BLOCK];
        for (int64_t i = 0; i < n; i++) {
            float x = whole ? values[first + i] * inverse : values[first + i] / amax;
            uint32_t above = 0;
            for (int k = 0; k < 15; k++) above += x > bounds[k];
            nearest[i] = above;
        }
        if (n % 2) nearest[n] = 7; /* zero */
        for (int64_t i = 0; i < n; i += 2)
            codes[(first + i) / 2] = (uint8_t)(nearest[i] << 4 | nearest[i + 1]);
    }
}

static int64_t length_of(int64_t block, int64_t size, int64_t count) {
    int64_t left = count - block * size;
    return left < size ? left : size;
}

/* The amax of a shorter block is at least 1e-38, as in bitsandbytes. */
static float amax_of(const struct quantized_weight *w, const float *values, int64_t block) {
    int64_t count = length_of(block, w->block, w->count);
    float amax = largest_magnitude(values + block * w->block, count);
    return count == w->block ? amax : fmaxf(amax, 1e-38f);
}

/* Stores the codes of a block with this scale. A value is divided, and so off by less than an ulp
 * of fp32 from a code that it was computed of. */
static void store_codes(const struct quantized_weight *w, const float *values, int64_t block,
                        float scale) {
    const int64_t first = block * w->block, count = length_of(block, w->block, w->count);
    uint8_t *codes = (uint8_t *)w->codes.data + first;
    for (int64_t done = 0, n; done < count; done += n) {
        float quotients[STORE_BLOCK];
        n = count - done < STORE_BLOCK ? count - done : STORE_BLOCK;
        for (int64_t i = 0; i < n; i++)
            quotients[i] = scale == 0 ? 0 : values[first + done + i] / scale;
        dtype_store_f8(codes + done, w->codes.dtype, quotients, 1, (size_t)n);
    }
    ((float *)w->scales.data)[block] = scale;
}

/* Stores the codes of a block and returns its scale. */
static float store_block(const struct quantized_weight *w, const float *values, int64_t block) {
    int64_t first = block * w->block, count = length_of(block, w->block, w->count);
    uint8_t *codes = (uint8_t *)w->codes.data + dtype_size(w->codes.dtype, first);
    float amax = amax_of(w, values, block);
    if (w->codes.dtype == DTYPE_NF4) {
        store_nf4(codes, values + first, fmaxf(amax, 1e-38f), count, count == w->block);
        return amax;
    }
    float scale = f8_scale(amax, w->codes.dtype, false);
    dtype_store_f8(codes, w->codes.dtype, values + first, scale, (size_t)count);
    return 1 / scale;
}

/* Returns the mean amax of all blocks, whose sum does not depend on the number of threads. */
static float mean_amax(const struct quantized_weight *w, const float *values) {
    enum { PARTS = 64 };
    double sums[PARTS] = {0}, sum = 0;
    int64_t blocks = tensor_count(&w->scales), share = blocks_of(blocks, PARTS);
#pragma omp parallel for schedule(static)
    for (int part = 0; part < PARTS; part++)
        for (int64_t b = part * share; b < (part + 1) * share && b < blocks; b++)
            sums[part] += (double)amax_of(w, values, b);
    for (int part = 0; part < PARTS; part++) sum += sums[part];
    return (float)(sum / (double)blocks);
}

/* Returns the code whose value is nearest to x, which is first rounded to one of 65536 points of
 * -1 .. 1, as bitsandbytes does on CPUs. */
static uint8_t dynamic8_code(const float values[256], float x) {
    float at = (x + 1) * 32767.5f + 0.5f;
    int point = at >= 65535 ? 65535 : at > 0 ? (int)at : 0;
    float rounded = (float)(point * (2.0 / 65535) - 1);
    int low = 0, high = 255;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (values[middle] <= rounded) low = middle;
        else high = middle;
    }
    return (uint8_t)(rounded - values[low] <= values[high] - rounded ? low : high);
}

static void list_values(float values[256]) {
    for (uint32_t code = 0; code < 256; code++) values[code] = dynamic8_value(code);
}

/* Stores the blocks that share a scale of the second level, and both levels of their scales. */
static void store_second_block(const struct quantized_weight *w, const float *values, int64_t index,
                               float mean, const float dynamic8[256]) {
    float scales[SECOND_BLOCK_MAX];
    int64_t first = index * w->second_block;
    int64_t count = length_of(index, w->second_block, tensor_count(&w->scales));
    uint8_t *codes = (uint8_t *)w->scales.data + first;
    assert(count <= SECOND_BLOCK_MAX);
    for (int64_t i = 0; i < count; i++) scales[i] = store_block(w, values, first + i) - mean;
    float amax = largest_magnitude(scales, count), inverse = 1 / amax;
    for (int64_t i = 0; i < count; i++)
        codes[i] = amax > 0 ? dynamic8_code(dynamic8, scales[i] * inverse) : 0;
    ((float *)w->second_scales.data)[index] = amax;
}

void quantized_weight_store(const struct quantized_weight *w, const float *values,
                            const float *scales) {
    float dynamic8[256];
    assert(!scales || w->codes.dtype == DTYPE_E4M3);
    if (w->second_block == 0) {
#pragma omp parallel for schedule(static)
        for (int64_t block = 0; block < tensor_count(&w->scales); block++)
            if (scales) store_codes(w, values, block, scales[block]);
            else ((float *)w->scales.data)[block] = store_block(w, values, block);
        return;
    }
    float mean = mean_amax(w, values);
    list_values(dynamic8);
    *(float *)w->mean.data = mean;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < tensor_count(&w->second_scales); i++)
        store_second_block(w, values, i, mean, dynamic8);
}

static float scale_of(const struct quantized_weight *w, int64_t block) {
    if (w->second_block == 0) return ((const float *)w->scales.data)[block];
    float value = dynamic8_value(((const uint8_t *)w->scales.data)[block]);
    return value * ((const float *)w->second_scales.data)[block / w->second_block] +
           *(const float *)w->mean.data;
}

void quantized_weight_load(const struct quantized_weight *w, float *values, int64_t first,
                           int64_t count) {
    const uint8_t *codes = w->codes.data;
    float scale = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = first + i;
        if (i == 0 || at % w->block == 0) scale = scale_of(w, at / w->block);
        float value = w->codes.dtype == DTYPE_NF4
                          ? nf4_values[codes[at / 2] >> (at % 2 ? 0 : 4) & 15]
                          : f8_widen(codes[at], w->codes.dtype);
        values[i] = value * scale;
    }
}
