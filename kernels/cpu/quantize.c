/* Quantizes to 8 bits in two passes over the tensor: one for the amax, unless it is known, and one
 * for the codes. */
#include <assert.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/float8.h"

enum { COLUMN_SHARE = 64 /* columns of a thread, where threads divide columns */ };

static float scale_of(float amax, const struct quantize_args *args) {
    return f8_scale(amax, quantize_result(args)->dtype == DTYPE_E4M3, args->power_of_two);
}

static void store(const struct quantize_args *args, int64_t at, int64_t count, float scale) {
    uint8_t *out = (uint8_t *)args->out->data + at;
    bool e4m3 = args->out->dtype == DTYPE_E4M3;
    float buffer[CPU_BLOCK];
    for (int64_t first = 0; first < count; first += CPU_BLOCK) {
        int64_t n = block_length(first, count, CPU_BLOCK);
        const struct tensor *in = args->in;
        const float *values = dtype_widen(buffer, in->data, in->dtype, (size_t)(at + first), n);
        uint8_t *codes = out + first;
        if (e4m3)
            for (int64_t i = 0; i < n; i++) codes[i] = (uint8_t)f8_round(values[i], scale, true);
        else
            for (int64_t i = 0; i < n; i++) codes[i] = (uint8_t)f8_round(values[i], scale, false);
    }
}

static struct amax find(const struct quantize_args *args) {
    int64_t count = tensor_count(args->in), blocks = blocks_of(count, CPU_BLOCK);
    uint32_t largest = 0, bad = 0;
    if (args->found) return *args->track_amax;
#pragma omp parallel for schedule(static) reduction(max : largest) reduction(max : bad)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t at = block * CPU_BLOCK;
        struct amax one = cpu_amax(args->in, at, block_length(at, count, CPU_BLOCK));
        largest = one.largest > largest ? one.largest : largest;
        bad = one.not_finite > bad ? one.not_finite : bad;
    }
    struct amax all = {largest, bad};
    if (args->track_amax) cpu_merge_amax(args->track_amax, all);
    return all;
}

/* Stores n columns, each with its scale, in row order and transposed. */
static void store_columns(const struct quantize_args *args, int64_t c, int64_t n,
                          const float scales[COLUMN_SHARE]) {
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    bool e4m3 = quantize_result(args)->dtype == DTYPE_E4M3;
    uint8_t *out = args->out ? args->out->data : NULL;
    uint8_t *transposed = args->transposed ? args->transposed->data : NULL;
    float buffer[COLUMN_SHARE];
    for (int64_t row = 0; row < rows; row++) {
        size_t at = (size_t)(row * columns + c);
        uint8_t codes[COLUMN_SHARE];
        const float *values = dtype_widen(buffer, args->in->data, args->in->dtype, at, (size_t)n);
        if (e4m3)
            for (int64_t i = 0; i < n; i++)
                codes[i] = (uint8_t)f8_round(values[i], scales[i], true);
        else
            for (int64_t i = 0; i < n; i++)
                codes[i] = (uint8_t)f8_round(values[i], scales[i], false);
        if (out) memcpy(out + at, codes, (size_t)n);
        if (transposed)
            for (int64_t i = 0; i < n; i++) transposed[(c + i) * rows + row] = codes[i];
    }
}

static void store_whole_transposed(const struct quantize_args *args, float scale) {
    int64_t columns = tensor_columns(args->in);
    float scales[COLUMN_SHARE];
    for (int i = 0; i < COLUMN_SHARE; i++) scales[i] = scale;
#pragma omp parallel for schedule(static)
    for (int64_t share = 0; share < blocks_of(columns, COLUMN_SHARE); share++) {
        int64_t c = share * COLUMN_SHARE;
        store_columns(args, c, block_length(c, columns, COLUMN_SHARE), scales);
    }
}

static void whole(const struct quantize_args *args, struct amax *all) {
    int64_t count = tensor_count(args->in), blocks = blocks_of(count, CPU_BLOCK);
    *all = find(args);
    bool given = args->amax && *args->amax > 0;
    float scale = scale_of(given ? *args->amax : f8_float(all->largest), args);
    args->scales[0] = 1 / scale;
    if (args->transposed) {
        store_whole_transposed(args, scale);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t at = block * CPU_BLOCK;
        store(args, at, block_length(at, count, CPU_BLOCK), scale);
    }
}

static void by_rows(const struct quantize_args *args, struct amax *all) {
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    uint32_t largest = 0, bad = 0;
#pragma omp parallel for schedule(static) reduction(max : largest) reduction(max : bad)
    for (int64_t row = 0; row < rows; row++) {
        struct amax one = cpu_amax(args->in, row * columns, columns);
        float scale = scale_of(f8_float(one.largest), args);
        args->scales[row] = 1 / scale;
        store(args, row * columns, columns, scale);
        largest = one.largest > largest ? one.largest : largest;
        bad = one.not_finite > bad ? one.not_finite : bad;
    }
    *all = (struct amax){largest, bad};
}

/* Finds the largest finite magnitude of each of n columns, and computes their scales. */
static struct amax scale_columns(const struct quantize_args *args, int64_t c, int64_t n,
                                 float scales[COLUMN_SHARE]) {
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    struct amax all = {0, 0};
    uint32_t largest[COLUMN_SHARE] = {0}, any[COLUMN_SHARE] = {0};
    float buffer[COLUMN_SHARE];
    for (int64_t row = 0; row < rows; row++) {
        const float *values =
            dtype_widen(buffer, args->in->data, args->in->dtype, (size_t)(row * columns + c), n);
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits = f8_bits(values[i]) & 0x7fffffff;
            uint32_t finite = bits < 0x7f800000 ? bits : 0;
            any[i] = bits > any[i] ? bits : any[i];
            largest[i] = finite > largest[i] ? finite : largest[i];
        }
    }
    for (int64_t i = 0; i < n; i++) {
        all.largest = largest[i] > all.largest ? largest[i] : all.largest;
        all.not_finite |= any[i] >= 0x7f800000;
        scales[i] = scale_of(f8_float(largest[i]), args);
        args->scales[c + i] = 1 / scales[i];
    }
    return all;
}

static void by_columns(const struct quantize_args *args, struct amax *all) {
    int64_t columns = tensor_columns(args->in);
    uint32_t largest = 0, bad = 0;
#pragma omp parallel for schedule(static) reduction(max : largest) reduction(max : bad)
    for (int64_t share = 0; share < blocks_of(columns, COLUMN_SHARE); share++) {
        int64_t c = share * COLUMN_SHARE, n = block_length(c, columns, COLUMN_SHARE);
        float scales[COLUMN_SHARE];
        struct amax one = scale_columns(args, c, n, scales);
        store_columns(args, c, n, scales);
        largest = one.largest > largest ? one.largest : largest;
        bad = one.not_finite > bad ? one.not_finite : bad;
    }
    *all = (struct amax){largest, bad};
}

static void note(struct quantize_record *record, const struct amax *all) {
    if (f8_float(all->largest) > record->amax) record->amax = f8_float(all->largest);
    record->not_finite += all->not_finite != 0;
    record->zero += all->largest == 0 && !all->not_finite;
}

void cpu_quantize(struct backend *be, const struct quantize_args *args) {
    struct amax all;
    (void)be;
    assert(dtype_is_quantized(quantize_result(args)->dtype));
    assert(!args->out || tensor_count(args->out) == tensor_count(args->in));
    assert(!(args->amax || args->track_amax) || args->by == QUANTIZE_WHOLE);
    assert(!args->transposed || args->by != QUANTIZE_ROWS);
    if (args->by == QUANTIZE_WHOLE) whole(args, &all);
    else if (args->by == QUANTIZE_ROWS) by_rows(args, &all);
    else by_columns(args, &all);
    if (args->record) note(args->record, &all);
}

size_t cpu_quantize_scratch(struct backend *be, const struct quantize_args *args) {
    (void)be, (void)args;
    return 0;
}
