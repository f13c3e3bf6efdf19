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

/* Computes the factors before and after rounding, for each column, and merges the part's amax into
 * `all`. */
static void find_scales(float down[CPU_BLOCK], float up[CPU_BLOCK], struct amax *all,
                        const uint32_t largest[CPU_BLOCK], const struct quantize_format *format,
                        int64_t n) {
    for (int64_t first = 0; first < n; first += format->columns) {
        int64_t count = block_length(first, n, format->columns);
        uint32_t bits = 0;
        for (int64_t i = first; i < first + count; i++)
            bits = largest[i] > bits ? largest[i] : bits;
        bool finite = bits < 0x7f800000;
        int exponent = mx_exponent(f32_of_bits(bits), format->element, format->rounding);
        if (bits == 0 || !finite) exponent = 0;
        for (int64_t i = first; i < first + count; i++) {
            down[i] = mx_power(-exponent);
            up[i] = finite ? mx_power(exponent) : NAN;
        }
        if (!finite) all->not_finite = 1;
        else if (bits > all->largest) all->largest = bits;
    }
}

/* A loop for each element, so that the compiler knows it. */
static void round_row(float out[CPU_BLOCK], const float *values, const float down[CPU_BLOCK],
                      const float up[CPU_BLOCK], enum dtype element, int64_t n) {
#define LOOP(NAME)                      \
    if (element == DTYPE_##NAME)        \
        for (int64_t i = 0; i < n; i++) \
            out[i] = mx_round(values[i] * down[i], DTYPE_##NAME) * up[i];
    LOOP(E4M3)
    LOOP(E5M2)
    LOOP(E2M1)
#undef LOOP
}

static struct amax round_part(const struct fake_quantize_args *args, const struct part *p) {
    uint32_t largest[CPU_BLOCK];
    float down[CPU_BLOCK], up[CPU_BLOCK], buffer[CPU_BLOCK], rounded[CPU_BLOCK];
    struct amax all = {0, 0};
    find_largest(largest, args, p);
    find_scales(down, up, &all, largest, &args->format, p->n);
    for (int64_t row = p->first; row < p->last; row++) {
        const float *values = read_row(buffer, args, row, p);
        size_t at = (size_t)(row * tensor_columns(args->out) + p->c);
        round_row(rounded, values, down, up, args->format.element, p->n);
        dtype_store(args->out->data, args->out->dtype, at, rounded, (size_t)p->n);
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
#pragma omp parallel for schedule(static) reduction(max : largest) reduction(max : bad)
    for (int64_t i = 0; i < bands * across; i++) {
        int64_t first = i / across * format->rows, c = i % across * CPU_BLOCK;
        struct part part = {first, first + block_length(first, rows, format->rows), c,
                            block_length(c, columns, CPU_BLOCK)};
        struct amax one = round_part(args, &part);
        largest = one.largest > largest ? one.largest : largest;
        bad = one.not_finite > bad ? one.not_finite : bad;
    }
    if (args->record) cpu_note_amax(args->record, &(struct amax){largest, bad});
}

size_t cpu_fake_quantize_scratch(struct backend *be, const struct fake_quantize_args *args) {
    (void)be, (void)args;
    return 0;
}
