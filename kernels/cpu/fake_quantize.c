/* Rounds to formats of blocks, a band of rows that share scales at a time: the largest magnitudes
 * of columns, then of blocks, then the values. All loops are along rows. */
#include <math.h>

#include "kernels/block_scale.h"
#include "kernels/cpu/cpu.h"

/* Part of a band: rows first .. last - 1, and n columns from column c on, whole blocks but for the
 * last of a row. */
struct part {
    int64_t first, last, c, n;
};

/* Factors of a part's columns before and after rounding. */
struct column_factors {
    float down[CPU_BLOCK], up[CPU_BLOCK];
};

static const float *read_row(float *buffer, const struct fake_quantize_args *args, int64_t row,
                             const struct part *p) {
    size_t at = (size_t)(row * tensor_columns(args->in) + p->c);
    return dtype_widen(buffer, args->in->data, args->in->dtype, at, (size_t)p->n);
}

/* Finds the bits of the largest magnitude of each column. */
static void find_largest(uint32_t largest[CPU_BLOCK], const struct fake_quantize_args *args,
                         const struct part *p) {
    float buffer[CPU_BLOCK];
    for (int64_t i = 0; i < p->n; i++) largest[i] = 0;
    for (int64_t row = p->first; row < p->last; row++) {
        const float *values = read_row(buffer, args, row, p);
        for (int64_t i = 0; i < p->n; i++) {
            uint32_t bits = f32_bits(values[i]) & 0x7fffffff;
            largest[i] = bits > largest[i] ? bits : largest[i];
        }
    }
}

/* Sets the factors of blocks, from the largest magnitudes of their columns. Returns the amax. */
static struct amax find_factors(struct column_factors *f, const uint32_t largest[CPU_BLOCK],
                                const struct quantize_format *format, float tensor_scale,
                                int64_t count) {
    struct amax all = {0, 0};
    for (int64_t first = 0; first < count; first += format->columns) {
        int64_t n = block_length(first, count, format->columns);
        uint32_t bits = 0;
        for (int64_t i = first; i < first + n; i++) bits = largest[i] > bits ? largest[i] : bits;
        bool finite = bits < 0x7f800000;
        struct block_factors block = {1, NAN};
        if (finite) {
            all.largest = bits > all.largest ? bits : all.largest;
            block = block_factors(f32_of_bits(bits), tensor_scale, format->element, format->scale,
                                  format->rounding);
        } else {
            all.not_finite = 1;
        }
        for (int64_t i = first; i < first + n; i++) f->down[i] = block.down, f->up[i] = block.up;
    }
    return all;
}

/* A loop for each element, so that the compiler knows it. */
#define BY_ELEMENT(X) X(E4M3) X(E5M2) X(E2M1)

static void round_values(float *out, const float *values, const struct column_factors *f,
                         enum dtype element, int64_t n) {
#define LOOP(NAME)                      \
    if (element == DTYPE_##NAME)        \
        for (int64_t i = 0; i < n; i++) \
            out[i] = element_round(values[i] * f->down[i], DTYPE_##NAME) * f->up[i];
    BY_ELEMENT(LOOP)
#undef LOOP
}

/* c: column of the first value. */
static void round_values_stochastic(float *out, const float *values, const struct column_factors *f,
                                    enum dtype element, int64_t n, struct rounding_key key,
                                    int64_t c) {
#define LOOP(NAME)                                                                                 \
    if (element == DTYPE_##NAME)                                                                   \
        for (int64_t i = 0; i < n; i++) {                                                          \
            uint32_t random = rounding_bits(key, (uint32_t)c + (uint32_t)i);                       \
            out[i] =                                                                               \
                element_round_stochastic(values[i] * f->down[i], DTYPE_##NAME, random) * f->up[i]; \
        }
    BY_ELEMENT(LOOP)
#undef LOOP
}

/* Stores the codes of n values of elements. */
static void store_codes(const struct tensor *out, int64_t at, const float *elements, int64_t n) {
    uint8_t *bytes = out->data;
#define LOOP(NAME)                      \
    if (out->dtype == DTYPE_##NAME)     \
        for (int64_t i = 0; i < n; i++) \
            bytes[at + i] = (uint8_t)element_code(elements[i], DTYPE_##NAME);
    LOOP(E4M3)
    LOOP(E5M2)
#undef LOOP
    if (out->dtype != DTYPE_E2M1) return;
    for (int64_t i = 0; i < n; i += 2)
        bytes[(at + i) / 2] = (uint8_t)(element_code(elements[i], DTYPE_E2M1) |
                                        element_code(elements[i + 1], DTYPE_E2M1) << 4);
}

/* Stores the scales of a part's blocks, and sets the factors after rounding to 1. */
static void take_scales(const struct fake_quantize_args *args, const struct part *p,
                        struct column_factors *f) {
    const struct tensor *scales = args->block_scales;
    int64_t columns = args->format.columns;
    uint8_t *codes = (uint8_t *)scales->data +
                     p->first / args->format.rows * tensor_columns(scales) + p->c / columns;
    for (int64_t i = 0; i < p->n; i += columns)
        codes[i / columns] = block_scale_code(f->up[i], scales->dtype);
    for (int64_t i = 0; i < p->n; i++) f->up[i] = 1;
}

static struct amax round_part(const struct fake_quantize_args *args, const struct part *p,
                              float tensor_scale) {
    const struct quantize_format *format = &args->format;
    const struct tensor *out = args->out;
    uint32_t largest[CPU_BLOCK];
    struct column_factors f;
    float buffer[CPU_BLOCK], rounded[CPU_BLOCK];
    find_largest(largest, args, p);
    struct amax all = find_factors(&f, largest, format, tensor_scale, p->n);
    if (args->block_scales) take_scales(args, p, &f);
    for (int64_t row = p->first; row < p->last; row++) {
        const float *values = read_row(buffer, args, row, p);
        if (format->stochastic)
            round_values_stochastic(rounded, values, &f, format->element, p->n,
                                    rounding_row_key(args->key, args->inputs->first_row + row),
                                    p->c);
        else round_values(rounded, values, &f, format->element, p->n);
        int64_t at = row * tensor_columns(out) + p->c;
        if (args->block_scales) store_codes(out, at, rounded, p->n);
        else dtype_store(out->data, out->dtype, (size_t)at, rounded, (size_t)p->n);
    }
    return all;
}

/* Returns the tensor's scale, which it stores; 1 in a format without one. */
static float find_tensor_scale(const struct fake_quantize_args *args) {
    if (!args->scales) return 1;
    struct amax all = cpu_find_amax(args->in, args->track_amax, args->found);
    float *scale = args->scales->data;
    return *scale = tensor_scale(f32_of_bits(all.largest));
}

void cpu_fake_quantize(struct backend *be, const struct fake_quantize_args *args) {
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    int64_t band = args->format.rows, bands = blocks_of(rows, band);
    int64_t across = blocks_of(columns, CPU_BLOCK);
    uint32_t largest = 0, bad = 0;
    (void)be;
    fake_quantize_check(args);
    const float scale = find_tensor_scale(args);
#pragma omp parallel for schedule(static) reduction(max : largest) reduction(max : bad)
    for (int64_t i = 0; i < bands * across; i++) {
        int64_t first = i / across * band, c = i % across * CPU_BLOCK;
        struct part part = {first, first + block_length(first, rows, band), c,
                            block_length(c, columns, CPU_BLOCK)};
        struct amax one = round_part(args, &part, scale);
        largest = one.largest > largest ? one.largest : largest;
        bad = one.not_finite > bad ? one.not_finite : bad;
    }
    if (args->record) cpu_note_amax(args->record, &(struct amax){largest, bad});
}

size_t cpu_fake_quantize_scratch(struct backend *be, const struct fake_quantize_args *args) {
    (void)be, (void)args;
    return 0;
}
