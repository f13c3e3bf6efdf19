/* Microscaling formats against their definition, and against torchao (test/golden/mx.py). */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/random.h"
#include "kernels/quantize_format.h"
#include "test/kernels/bench.h"
#include "test/kernels/check.h"
#include "test/safetensors_find.h"

struct shape {
    int64_t rows, columns;
    int64_t block_rows, block_columns;
    enum dtype element, in;
    enum scale_rounding rounding;
    bool misaligned;
};

/* Returns the values of an element without sign, in the order of codes. */
static int values_of(double values[128], enum dtype element) {
    static const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    if (element == DTYPE_E2M1) {
        memcpy(values, e2m1, sizeof e2m1);
        return 8;
    }
    int count = element == DTYPE_E4M3 ? 0x7f : 0x7c;
    for (int code = 0; code < count; code++) values[code] = f32_from_f8((uint8_t)code, element);
    return count;
}

/* The nearest value by search; of two, that with the even code. */
static double nearest(double value, const double *values, int count) {
    int best = 0;
    for (int i = 1; i < count; i++) {
        double mine = fabs(values[i] - fabs(value)), its = fabs(values[best] - fabs(value));
        if (mine < its || (mine == its && i % 2 == 0)) best = i;
    }
    return copysign(values[best], value);
}

static double scale_of(double amax, const double *values, int count, enum scale_rounding rounding) {
    int exponent, of_max;
    double max = values[count - 1];
    if (amax == 0) return 1;
    if (rounding == SCALE_POWER_OF_TWO) {
        double fraction = frexp(amax / max, &exponent); /* in 0.5 .. 1 */
        exponent -= fraction == 0.5;
    } else {
        frexp(amax, &exponent);
        frexp(max, &of_max);
        exponent -= of_max;
    }
    return ldexp(1, exponent < -127 ? -127 : exponent);
}

/* Rounds a block in place; a value that is not finite makes all NaN. Returns its amax, or NaN. */
static double round_block(double *values, const struct shape *s, int64_t row, int64_t column) {
    double codes[128], amax = 0;
    int count = values_of(codes, s->element);
    int64_t last_row = row + s->block_rows, last_column = column + s->block_columns;
    if (last_row > s->rows) last_row = s->rows;
    if (last_column > s->columns) last_column = s->columns;
    for (int64_t r = row; r < last_row; r++)
        for (int64_t c = column; c < last_column; c++) {
            double value = fabs(values[r * s->columns + c]);
            amax = isfinite(value) && !isnan(amax) ? fmax(amax, value) : NAN;
        }
    double scale = scale_of(amax, codes, count, s->rounding);
    for (int64_t r = row; r < last_row; r++)
        for (int64_t c = column; c < last_column; c++) {
            double *value = &values[r * s->columns + c];
            *value = isnan(amax) ? NAN : nearest(*value / scale, codes, count) * scale;
        }
    return amax;
}

static void body(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t count = s->rows * s->columns;
    double *values = check_doubles(c, count), largest = 0;
    for (int64_t i = 0; i < count; i++)
        values[i] =
            check_round(ldexp(random_normal(5, 0, (uint64_t)i), (int)(i / 50 % 9) - 4), s->in);
    for (int64_t i = 0; i < s->columns; i++) values[(s->rows - 1) * s->columns + i] = 0;
    if (count > 100) values[3] = s->rows % 2 ? INFINITY : NAN;
    struct tensor in = check_tensor(c, CHECK_READ, s->in, s->rows, s->columns, values);
    struct tensor out = s->misaligned
                            ? check_misaligned(c, CHECK_WRITE, DTYPE_BF16, s->rows, s->columns)
                            : check_output(c, DTYPE_BF16, s->rows, s->columns);
    const struct quantize_record before = {0, 5, 7};
    struct quantize_record *record = check_memory(c, CHECK_WRITE, &before, sizeof before), after;
    CHECK_OP(c, fake_quantize, .out = &out, .in = &in, .record = record,
             .format = {s->element, s->block_rows, s->block_columns, DTYPE_E8M0, s->rounding});
    if (!c->verify) return;
    bool bad = false;
    for (int64_t row = 0; row < s->rows; row += s->block_rows)
        for (int64_t column = 0; column < s->columns; column += s->block_columns) {
            double amax = round_block(values, s, row, column);
            bad = bad || isnan(amax);
            largest = isnan(amax) ? largest : fmax(largest, amax);
        }
    const double *got = check_read(c, &out);
    for (int64_t i = 0; i < count; i++)
        cr_assert(isnan(values[i]) ? isnan(got[i]) : got[i] == values[i],
                  "element %d is %.9g, expected %.9g", (int)i, got[i], values[i]);
    backend_download(&c->be, &after, record, sizeof after);
    cr_expect_eq((double)after.amax, largest);
    cr_expect_eq(after.not_finite, 5 + bad);
    cr_expect_eq(after.zero, 7 + (largest == 0 && !bad));
}

/* Blocks that sizes do not divide, of zeros, and with a value that is not finite. */
Test(fake_quantize, rounds_blocks) {
    static const int64_t sizes[][2] = {{1, 1}, {3, 32}, {33, 72}, {64, 64}, {77, 131}, {5, 1096}};
    static const int64_t blocks[][2] = {{1, 32}, {32, 1}, {1, 16}, {16, 1}, {1, 128}};
    static const enum dtype elements[] = {DTYPE_E4M3, DTYPE_E5M2, DTYPE_E2M1};
    static const enum dtype inputs[] = {DTYPE_BF16, DTYPE_F32, DTYPE_F16};
    int n = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++, n++)
            check_everywhere(body, &(const struct shape){
                                       sizes[i][0], sizes[i][1], blocks[k][0], blocks[k][1],
                                       elements[n % 3], inputs[n / 3 % 3],
                                       n % 2 ? SCALE_OF_EXPONENT : SCALE_POWER_OF_TWO, n % 4 == 3});
}

struct fixture {
    struct safetensors file;
    char name[32];
    enum dtype element;
    enum scale_rounding rounding;
};

static const struct safetensors_entry *find(const struct safetensors *file, const char *name) {
    const struct safetensors_entry *entry = safetensors_find(file, name);
    cr_assert_not_null(entry, "no %s", name);
    return entry;
}

static void torchao(struct check *c, const void *given) {
    const struct fixture *f = given;
    char name[64];
    const struct safetensors_entry *entry = find(&f->file, f->name);
    int64_t rows = (int64_t)entry->shape[0], columns = (int64_t)entry->shape[1];
    float *expected, *values = malloc((size_t)(rows * columns) * sizeof *values);
    double *doubles = check_doubles(c, rows * columns);
    uint16_t *stored = safetensors_data(&f->file, entry);
    snprintf(name, sizeof name, "%s.%s.%s", f->name, dtype_name(f->element),
             f->rounding == SCALE_POWER_OF_TWO ? "up" : "floor");
    expected = safetensors_data(&f->file, find(&f->file, name));
    cr_assert(values && stored && expected);
    dtype_widen(values, stored, DTYPE_BF16, 0, (size_t)(rows * columns));
    for (int64_t i = 0; i < rows * columns; i++) doubles[i] = values[i];
    struct tensor in = check_tensor(c, CHECK_READ, DTYPE_BF16, rows, columns, doubles);
    struct tensor out = check_output(c, DTYPE_BF16, rows, columns);
    CHECK_OP(c, fake_quantize, .out = &out, .in = &in,
             .format = {f->element, 1, 32, DTYPE_E8M0, f->rounding});
    for (int64_t i = 0; i < rows * columns; i++) doubles[i] = expected[i];
    if (c->verify) check_equal(c, name, &out, doubles);
    free(values);
    free(stored);
    free(expected);
}

Test(fake_quantize, equals_torchao) {
    static const char *const names[] = {"normal", "wide", "ties", "zeros"};
    static const enum dtype elements[] = {DTYPE_E4M3, DTYPE_E5M2, DTYPE_E2M1};
    struct fixture f;
    struct error error;
    cr_assert(safetensors_open(&f.file, "test/golden/mx.safetensors", &error) == 0, "%s",
              error.text);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int e = 0; e < 6; e++) {
            snprintf(f.name, sizeof f.name, "%s", names[i]);
            f.element = elements[e / 2];
            f.rounding = e % 2 ? SCALE_POWER_OF_TWO : SCALE_OF_EXPONENT;
            check_everywhere(torchao, &f);
        }
    safetensors_close(&f.file);
}

static const char *const variants[] = {"mxfp8", "mxfp8 of columns", "mxfp4", "mxfp4 of columns",
                                       NULL};

static size_t time_fake_quantize(struct bench *b, int variant) {
    struct tensor in = bench_rows(b, DTYPE_BF16, BENCH_HIDDEN);
    struct tensor out = bench_rows(b, DTYPE_BF16, BENCH_HIDDEN);
    enum dtype element = variant < 2 ? DTYPE_E4M3 : DTYPE_E2M1;
    int64_t rows = variant % 2 ? 32 : 1;
    OP(&b->be, fake_quantize, .out = &out, .in = &in,
       .format = {element, rows, 32 / rows, DTYPE_E8M0, SCALE_POWER_OF_TWO});
    return 2 * tensor_bytes(&in);
}
BENCH(fake_quantize, forward, variants, time_fake_quantize)
