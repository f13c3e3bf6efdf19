/* Rounding to 8 bits in two passes over the tensor: for the largest magnitudes, and for the codes.
 * bf16, which is what linear layers read, is looked at as integers first. */
#include <assert.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/float8.h"

enum { BF16_INFINITE = 0x7f80, COLUMN_SHARE = 64 /* of a thread, where columns have scales */ };

/* What a thread finds of magnitudes, in fp32 or as the upper halves of it. */
struct magnitude {
    float finite; /* the largest that is finite */
    bool bad;     /* something was not */
};

static void join(struct magnitude *all, const struct magnitude *one) {
    if (one->finite > all->finite) all->finite = one->finite;
    all->bad = all->bad || one->bad;
}

static uint16_t largest_bf16(const uint16_t *in, int64_t count) {
    uint16_t largest = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < count; i++) {
        uint16_t magnitude = in[i] & 0x7fff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

static uint16_t largest_finite_bf16(const uint16_t *in, int64_t count) {
    uint16_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        uint16_t magnitude = in[i] & 0x7fff;
        if (magnitude < BF16_INFINITE && magnitude > largest) largest = magnitude;
    }
    return largest;
}

/* Of elements that follow each other. */
static struct magnitude magnitude_of(const struct tensor *in, int64_t at, int64_t count) {
    struct magnitude found = {0, false};
    float buffer[CPU_BLOCK];
    if (in->dtype == DTYPE_BF16) {
        const uint16_t *values = (const uint16_t *)in->data + at;
        uint16_t largest = largest_bf16(values, count);
        found.bad = largest >= BF16_INFINITE;
        found.finite = f32_from_bf16(found.bad ? largest_finite_bf16(values, count) : largest);
        return found;
    }
    for (int64_t first = 0; first < count; first += CPU_BLOCK) {
        int64_t n = block_length(first, count, CPU_BLOCK);
        const float *values = dtype_widen(buffer, in->data, in->dtype, (size_t)(at + first), n);
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits = f8_bits(values[i]) & 0x7fffffff;
            if (bits >= 0x7f800000) found.bad = true;
            else if (f8_float(bits) > found.finite) found.finite = f8_float(bits);
        }
    }
    return found;
}

static float scale_of(float amax, const struct quantize_args *args) {
    return f8_scale(amax, args->out->dtype == DTYPE_E4M3, args->power_of_two);
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

static void whole(const struct quantize_args *args, struct magnitude *all) {
    int64_t count = tensor_count(args->in), blocks = blocks_of(count, CPU_BLOCK);
    float largest = 0;
    bool bad = false;
#pragma omp parallel for schedule(static) reduction(max : largest) reduction(|| : bad)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t at = block * CPU_BLOCK;
        struct magnitude one = magnitude_of(args->in, at, block_length(at, count, CPU_BLOCK));
        largest = one.finite > largest ? one.finite : largest;
        bad = bad || one.bad;
    }
    *all = (struct magnitude){largest, bad};
    float scale = scale_of(args->amax && *args->amax > 0 ? *args->amax : largest, args);
    args->scales[0] = 1 / scale;
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t at = block * CPU_BLOCK;
        store(args, at, block_length(at, count, CPU_BLOCK), scale);
    }
}

static void by_rows(const struct quantize_args *args, struct magnitude *all) {
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    float largest = 0;
    bool bad = false;
#pragma omp parallel for schedule(static) reduction(max : largest) reduction(|| : bad)
    for (int64_t row = 0; row < rows; row++) {
        struct magnitude one = magnitude_of(args->in, row * columns, columns);
        float scale = scale_of(one.finite, args);
        args->scales[row] = 1 / scale;
        store(args, row * columns, columns, scale);
        largest = one.finite > largest ? one.finite : largest;
        bad = bad || one.bad;
    }
    *all = (struct magnitude){largest, bad};
}

/* The largest finite magnitude of each of n columns, and the scales that they give. */
static struct magnitude scale_columns(const struct quantize_args *args, int64_t c, int64_t n,
                                      float scales[COLUMN_SHARE]) {
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    struct magnitude all = {0, false};
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
        join(&all, &(struct magnitude){f8_float(largest[i]), any[i] >= 0x7f800000});
        scales[i] = scale_of(f8_float(largest[i]), args);
        args->scales[c + i] = 1 / scales[i];
    }
    return all;
}

static void store_columns(const struct quantize_args *args, int64_t c, int64_t n,
                          const float scales[COLUMN_SHARE]) {
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    bool e4m3 = args->out->dtype == DTYPE_E4M3;
    float buffer[COLUMN_SHARE];
    for (int64_t row = 0; row < rows; row++) {
        size_t at = (size_t)(row * columns + c);
        uint8_t *codes = (uint8_t *)args->out->data + at;
        const float *values = dtype_widen(buffer, args->in->data, args->in->dtype, at, n);
        if (e4m3)
            for (int64_t i = 0; i < n; i++)
                codes[i] = (uint8_t)f8_round(values[i], scales[i], true);
        else
            for (int64_t i = 0; i < n; i++)
                codes[i] = (uint8_t)f8_round(values[i], scales[i], false);
    }
}

static void by_columns(const struct quantize_args *args, struct magnitude *all) {
    int64_t columns = tensor_columns(args->in);
    float largest = 0;
    bool bad = false;
#pragma omp parallel for schedule(static) reduction(max : largest) reduction(|| : bad)
    for (int64_t share = 0; share < blocks_of(columns, COLUMN_SHARE); share++) {
        int64_t c = share * COLUMN_SHARE, n = block_length(c, columns, COLUMN_SHARE);
        float scales[COLUMN_SHARE];
        struct magnitude one = scale_columns(args, c, n, scales);
        store_columns(args, c, n, scales);
        largest = one.finite > largest ? one.finite : largest;
        bad = bad || one.bad;
    }
    *all = (struct magnitude){largest, bad};
}

static void note(struct quantize_record *record, const struct magnitude *all) {
    if (all->finite > record->amax) record->amax = all->finite;
    record->not_finite += all->bad;
    record->zero += all->finite == 0 && !all->bad;
}

void cpu_quantize(struct backend *be, const struct quantize_args *args) {
    struct magnitude all;
    (void)be;
    assert(dtype_is_8_bit(args->out->dtype) && tensor_count(args->out) == tensor_count(args->in));
    assert(!args->amax || args->by == QUANTIZE_WHOLE);
    if (args->by == QUANTIZE_WHOLE) whole(args, &all);
    else if (args->by == QUANTIZE_ROWS) by_rows(args, &all);
    else by_columns(args, &all);
    if (args->record) note(args->record, &all);
    if (args->dbias) cpu_column_sums(args->dbias, args->in);
}

size_t cpu_quantize_scratch(struct backend *be, const struct quantize_args *args) {
    (void)be, (void)args;
    return 0;
}
