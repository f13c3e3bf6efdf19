/* Rounds to microscaling formats, a band of rows that share scales at a time: the largest
 * magnitudes of columns, then of blocks, then the values. All loops are along rows. */
#include <assert.h>
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/microscaling.h"

/* Part of a band: rows first .. last - 1, and n columns from column c on, whole blocks but for the
 * last of a row. */
struct part {
    int64_t first, last, c, n;
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

/* Factors before and after rounding. */
struct factors {
    float down, up;
};

/* bits: of the block's largest magnitude, which is merged into `all`. */
static struct factors factors_of(uint32_t bits, const struct quantize_format *format,
                                 struct amax *all) {
    if (bits >= 0x7f800000) {
        all->not_finite = 1;
        return (struct factors){1, NAN};
    }
    if (bits == 0) return (struct factors){1, 1};
    if (bits > all->largest) all->largest = bits;
    int exponent = mx_exponent(f32_of_bits(bits), format->element, format->rounding);
    return (struct factors){mx_power(-exponent), mx_power(exponent)};
}

/* A loop for each element, so that the compiler knows it. */
#define BY_ELEMENT(X) X(E4M3) X(E5M2) X(E2M1)

/* Rounds n values that share a scale. */
static void round_block(float *out, const float *values, struct factors f, enum dtype element,
                        int64_t n) {
#define LOOP(NAME)               \
    if (element == DTYPE_##NAME) \
        for (int64_t i = 0; i < n; i++) out[i] = mx_round(values[i] * f.down, DTYPE_##NAME) * f.up;
    BY_ELEMENT(LOOP)
#undef LOOP
}

/* Rounds n values of columns that have a scale each. */
static void round_columns(float *out, const float *values, const float *down, const float *up,
                          enum dtype element, int64_t n) {
#define LOOP(NAME)                      \
    if (element == DTYPE_##NAME)        \
        for (int64_t i = 0; i < n; i++) \
            out[i] = mx_round(values[i] * down[i], DTYPE_##NAME) * up[i];
    BY_ELEMENT(LOOP)
#undef LOOP
}

static void store_row(const struct fake_quantize_args *args, int64_t row, const struct part *p,
                      const float *values) {
    size_t at = (size_t)(row * tensor_columns(args->out) + p->c);
    dtype_store(args->out->data, args->out->dtype, at, values, (size_t)p->n);
}

/* Blocks along a row. */
static struct amax round_row(const struct fake_quantize_args *args, const struct part *p) {
    const struct quantize_format *format = &args->format;
    float buffer[CPU_BLOCK], rounded[CPU_BLOCK];
    struct amax all = {0, 0};
    const float *values = read_row(buffer, args, p->first, p);
    for (int64_t first = 0; first < p->n; first += format->columns) {
        int64_t n = block_length(first, p->n, format->columns);
        uint32_t largest = 0;
        for (int64_t i = first; i < first + n; i++) {
            uint32_t bits = f32_bits(values[i]) & 0x7fffffff;
            largest = bits > largest ? bits : largest;
        }
        round_block(rounded + first, values + first, factors_of(largest, format, &all),
                    format->element, n);
    }
    store_row(args, p->first, p, rounded);
    return all;
}

/* Blocks down the columns of a band. */
static struct amax round_band(const struct fake_quantize_args *args, const struct part *p) {
    uint32_t largest[CPU_BLOCK];
    float down[CPU_BLOCK], up[CPU_BLOCK], buffer[CPU_BLOCK], rounded[CPU_BLOCK];
    struct amax all = {0, 0};
    find_largest(largest, args, p);
    for (int64_t i = 0; i < p->n; i++) {
        struct factors f = factors_of(largest[i], &args->format, &all);
        down[i] = f.down, up[i] = f.up;
    }
    for (int64_t row = p->first; row < p->last; row++) {
        const float *values = read_row(buffer, args, row, p);
        round_columns(rounded, values, down, up, args->format.element, p->n);
        store_row(args, row, p, rounded);
    }
    return all;
}

void cpu_fake_quantize(struct backend *be, const struct fake_quantize_args *args) {
    const struct quantize_format *format = &args->format;
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    int64_t across = blocks_of(columns, CPU_BLOCK), bands = blocks_of(rows, format->rows);
    uint32_t largest = 0, bad = 0;
    (void)be;
    assert(tensor_count(args->out) == rows * columns && args->out->dtype == DTYPE_BF16);
    assert(quantize_format_dequantized(format) && CPU_BLOCK % format->columns == 0);
    assert(format->rows == 1 || format->columns == 1);
#pragma omp parallel for schedule(static) reduction(max : largest) reduction(max : bad)
    for (int64_t i = 0; i < bands * across; i++) {
        int64_t first = i / across * format->rows, c = i % across * CPU_BLOCK;
        struct part part = {first, first + block_length(first, rows, format->rows), c,
                            block_length(c, columns, CPU_BLOCK)};
        struct amax one = format->rows == 1 ? round_row(args, &part) : round_band(args, &part);
        largest = one.largest > largest ? one.largest : largest;
        bad = one.not_finite > bad ? one.not_finite : bad;
    }
    if (args->record) cpu_note_amax(args->record, &(struct amax){largest, bad});
}

size_t cpu_fake_quantize_scratch(struct backend *be, const struct fake_quantize_args *args) {
    (void)be, (void)args;
    return 0;
}
