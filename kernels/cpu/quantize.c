/* Quantizes to 8 bits in two passes over each block: one for the amax, unless it is known, and one
 * for the codes. Three loops share the work: a tensor with one scale is divided among threads, and
 * its amax merged; blocks of several columns are each one thread's; of blocks one column wide a
 * thread takes some that are adjacent, and reads along rows. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/float8.h"

enum { COLUMN_SHARE = 64 /* columns of a thread, where threads divide columns */ };

static float scale_of(float amax, const struct quantize_args *args) {
    return f8_scale(amax, quantize_result(args)->dtype, args->scale_rounding == SCALE_POWER_OF_TWO);
}

static float *scales_of(const struct quantize_args *args) {
    return args->scales->data;
}

static void store(const struct quantize_args *args, int64_t at, int64_t count, float scale) {
    uint8_t *out = (uint8_t *)args->out->data + at;
    float buffer[CPU_BLOCK];
    for (int64_t first = 0; first < count; first += CPU_BLOCK) {
        int64_t n = block_length(first, count, CPU_BLOCK);
        const struct tensor *in = args->in;
        const float *values = dtype_widen(buffer, in->data, in->dtype, (size_t)(at + first), n);
        dtype_store_f8(out + first, args->out->dtype, values, scale, (size_t)n);
    }
}

/* Rows first..last-1 of n columns from column c on. */
struct columns {
    int64_t first, last, c, n;
};

/* Stores the columns, each with its scale, in row order and transposed. */
static void store_columns(const struct quantize_args *args, const struct columns *some,
                          const float scales[COLUMN_SHARE]) {
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    int64_t c = some->c, n = some->n;
    enum dtype dtype = quantize_result(args)->dtype;
    uint8_t *out = args->out ? args->out->data : NULL;
    uint8_t *transposed = args->transposed ? args->transposed->data : NULL;
    float buffer[COLUMN_SHARE];
    for (int64_t row = some->first; row < some->last; row++) {
        size_t at = (size_t)(row * columns + c);
        uint8_t codes[COLUMN_SHARE];
        const float *values = dtype_widen(buffer, args->in->data, args->in->dtype, at, (size_t)n);
#define X(NAME, ...)                    \
    if (dtype == DTYPE_##NAME)          \
        for (int64_t i = 0; i < n; i++) \
            codes[i] = (uint8_t)f8_round(values[i], scales[i], DTYPE_##NAME);
        DTYPES_QUANTIZED(X)
#undef X
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
        struct columns some = {0, tensor_rows(args->in), c, block_length(c, columns, COLUMN_SHARE)};
        store_columns(args, &some, scales);
    }
}

static void whole(const struct quantize_args *args, struct amax *all) {
    int64_t count = tensor_count(args->in), blocks = blocks_of(count, CPU_BLOCK);
    *all = cpu_find_amax(args->in, args->track_amax, args->found);
    bool given = args->amax && *args->amax > 0;
    float scale = scale_of(given ? *args->amax : f32_of_bits(all->largest), args);
    scales_of(args)[0] = 1 / scale;
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

/* Quantizes a block of rows x columns, whose first element is number `at`. */
static struct amax quantize_block(const struct quantize_args *args, float *scale_out, int64_t at,
                                  int64_t rows, int64_t columns) {
    int64_t stride = tensor_columns(args->in);
    struct amax all = {0, 0};
    for (int64_t row = 0; row < rows; row++) {
        struct amax one = cpu_amax(args->in, at + row * stride, columns);
        all.largest = one.largest > all.largest ? one.largest : all.largest;
        all.not_finite |= one.not_finite;
    }
    float scale = scale_of(f32_of_bits(all.largest), args);
    *scale_out = 1 / scale;
    for (int64_t row = 0; row < rows; row++) store(args, at + row * stride, columns, scale);
    return all;
}

static void by_blocks(const struct quantize_args *args, struct amax *all) {
    int64_t across = tensor_columns(args->scales), columns = tensor_columns(args->in) / across;
    int64_t rows = tensor_rows(args->in) / tensor_rows(args->scales);
    uint32_t largest = 0, bad = 0;
#pragma omp parallel for schedule(static) reduction(max : largest) reduction(max : bad)
    for (int64_t block = 0; block < tensor_count(args->scales); block++) {
        int64_t at = block / across * rows * tensor_columns(args->in) + block % across * columns;
        struct amax one = quantize_block(args, scales_of(args) + block, at, rows, columns);
        largest = one.largest > largest ? one.largest : largest;
        bad = one.not_finite > bad ? one.not_finite : bad;
    }
    *all = (struct amax){largest, bad};
}

/* Finds the largest finite magnitude of each column, and computes their scales. */
static struct amax scale_columns(const struct quantize_args *args, const struct columns *some,
                                 float *scales_out, float scales[COLUMN_SHARE]) {
    int64_t columns = tensor_columns(args->in), n = some->n;
    struct amax all = {0, 0};
    uint32_t largest[COLUMN_SHARE] = {0}, any[COLUMN_SHARE] = {0};
    float buffer[COLUMN_SHARE];
    for (int64_t row = some->first; row < some->last; row++) {
        const float *values = dtype_widen(buffer, args->in->data, args->in->dtype,
                                          (size_t)(row * columns + some->c), (size_t)n);
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits = f32_bits(values[i]) & 0x7fffffff;
            uint32_t finite = bits < 0x7f800000 ? bits : 0;
            any[i] = bits > any[i] ? bits : any[i];
            largest[i] = finite > largest[i] ? finite : largest[i];
        }
    }
    for (int64_t i = 0; i < n; i++) {
        all.largest = largest[i] > all.largest ? largest[i] : all.largest;
        all.not_finite |= any[i] >= 0x7f800000;
        scales[i] = scale_of(f32_of_bits(largest[i]), args);
        scales_out[i] = 1 / scales[i];
    }
    return all;
}

static void by_columns(const struct quantize_args *args, struct amax *all) {
    int64_t columns = tensor_columns(args->in), bands = tensor_rows(args->scales);
    int64_t rows = tensor_rows(args->in) / bands;
    uint32_t largest = 0, bad = 0;
#pragma omp parallel for schedule(static) collapse(2) reduction(max : largest) reduction(max : bad)
    for (int64_t band = 0; band < bands; band++)
        for (int64_t share = 0; share < blocks_of(columns, COLUMN_SHARE); share++) {
            int64_t c = share * COLUMN_SHARE;
            struct columns some = {band * rows, (band + 1) * rows, c,
                                   block_length(c, columns, COLUMN_SHARE)};
            float scales[COLUMN_SHARE];
            struct amax one =
                scale_columns(args, &some, scales_of(args) + band * columns + c, scales);
            store_columns(args, &some, scales);
            largest = one.largest > largest ? one.largest : largest;
            bad = one.not_finite > bad ? one.not_finite : bad;
        }
    *all = (struct amax){largest, bad};
}

void cpu_note_amax(struct quantize_record *record, const struct amax *all) {
    if (f32_of_bits(all->largest) > record->amax) record->amax = f32_of_bits(all->largest);
    record->not_finite += all->not_finite != 0;
    record->zero += all->largest == 0 && !all->not_finite;
}

void cpu_quantize(struct backend *be, const struct quantize_args *args) {
    bool one_scale = tensor_count(args->scales) == 1;
    bool one_column = tensor_columns(args->scales) == tensor_columns(args->in);
    struct amax all;
    (void)be;
    quantize_check(args);
    if (one_scale) whole(args, &all);
    else if (one_column) by_columns(args, &all);
    else by_blocks(args, &all);
    if (args->record) cpu_note_amax(args->record, &all);
}

size_t cpu_quantize_scratch(struct backend *be, const struct quantize_args *args) {
    (void)be, (void)args;
    return 0;
}
