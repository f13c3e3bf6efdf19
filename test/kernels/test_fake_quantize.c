/* Microscaling formats against their definition, and against torchao (test/golden/mx.py). */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/random.h"
#include "kernels/block_scale.h"
#include "kernels/quantize_format.h"
#include "test/kernels/bench.h"
#include "test/kernels/check.h"
#include "test/safetensors_find.h"

struct shape {
    int64_t rows, columns;
    struct quantize_format format;
    enum dtype in;
    bool misaligned, in_place, tracks, found;
    bool codes; /* written as codes, and dequantized again */
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

/* The value of smaller magnitude next to value, or that of larger magnitude if the distance to the
 * smaller one, as part of the distance of both, and `draw` make at least 1. */
static double neighbour(double value, double draw, const double *values, int count) {
    int above = 0;
    while (above < count - 1 && values[above] <= fabs(value)) above++;
    double low = values[above - 1], high = values[above];
    double part = (fabs(value) - low) / (high - low);
    return copysign(part + draw >= 1 ? high : low, value);
}

/* Factors of a block before and after rounding. */
struct factors {
    double down, up;
};

/* Factors of a scale that is a power of two, exactly. */
static struct factors power_of_two(double amax, double max, enum scale_rounding rounding) {
    int exponent, of_max;
    if (rounding == SCALE_POWER_OF_TWO) {
        double fraction = frexp(amax / max, &exponent); /* in 0.5 .. 1 */
        exponent -= fraction == 0.5;
    } else {
        frexp(amax, &exponent);
        frexp(max, &of_max);
        exponent -= of_max;
    }
    double scale = ldexp(1, exponent < -127 ? -127 : exponent);
    return (struct factors){1 / scale, scale};
}

/* NVFP4: divisions in fp32, one at a time; the scale is the nearest normal value of E4M3. */
static struct factors of_tensor_scale(float amax, float tensor_scale) {
    double codes[128];
    int count = values_of(codes, DTYPE_E4M3);
    float scale = amax / 6 / tensor_scale;
    float up = (float)nearest(fmaxf(scale, 0.015625f), codes, count), inverse = 1 / tensor_scale;
    return (struct factors){inverse / up, up};
}

static struct factors factors_of(double amax, double max, float tensor_scale,
                                 const struct quantize_format *format) {
    if (amax == 0) return (struct factors){1, 1};
    if (format->scale == DTYPE_E4M3) return of_tensor_scale((float)amax, tensor_scale);
    return power_of_two(amax, max, format->rounding);
}

static const struct rounding_key key = {0x12345678, 0x9abcdef0};
enum { FIRST_ROW = 1000 };

/* Rounds a block in place; a value that is not finite makes all NaN. Returns its amax, or NaN. */
static double round_block(double *values, const struct shape *s, float tensor_scale, int64_t row,
                          int64_t column) {
    double codes[128], amax = 0;
    int count = values_of(codes, s->format.element);
    int64_t last_row = row + s->format.rows, last_column = column + s->format.columns;
    if (last_row > s->rows) last_row = s->rows;
    if (last_column > s->columns) last_column = s->columns;
    for (int64_t r = row; r < last_row; r++)
        for (int64_t c = column; c < last_column; c++) {
            double value = fabs(values[r * s->columns + c]);
            amax = isfinite(value) && !isnan(amax) ? fmax(amax, value) : NAN;
        }
    struct factors f = factors_of(amax, codes[count - 1], tensor_scale, &s->format);
    for (int64_t r = row; r < last_row; r++)
        for (int64_t c = column; c < last_column; c++) {
            double *value = &values[r * s->columns + c];
            double scaled = (float)(*value * f.down);
            struct rounding_key row_key = rounding_row_key(key, FIRST_ROW + r);
            double draw = (rounding_bits(row_key, (uint32_t)c) >> 16) / 65536.0;
            *value = isnan(amax)            ? NAN
                     : s->format.stochastic ? neighbour(scaled, draw, codes, count) * f.up
                                            : nearest(scaled, codes, count) * f.up;
        }
    return amax;
}

/* Returns the largest finite magnitude. */
static double amax_of(const double *values, int64_t count) {
    double amax = 0;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(values[i])) amax = fmax(amax, fabs(values[i]));
    return amax;
}

/* Matrices of more elements have one that is not finite. */
enum { BAD_FROM = 100 };

static void fill(double *values, const struct shape *s) {
    int64_t count = s->rows * s->columns;
    for (int64_t i = 0; i < count; i++)
        values[i] =
            check_round(ldexp(random_normal(5, 0, (uint64_t)i), (int)(i / 50 % 9) - 4), s->in);
    for (int64_t i = 0; i < s->columns; i++) values[(s->rows - 1) * s->columns + i] = 0;
    if (count > BAD_FROM) values[3] = s->rows % 2 ? INFINITY : NAN;
}

/* Input and outputs of a call. */
struct outputs {
    struct tensor in, out, codes, block_scales, scales;
    struct quantize_record *record;
    struct amax *track_amax;
};

/* Codes and scales, without values. */
static void make_codes(struct check *c, const struct shape *s, struct outputs *o) {
    const struct tensor codes = {NULL, s->format.element, 2, {s->rows, s->columns}};
    const struct tensor scales = quantize_format_scales(&s->format, s->rows, s->columns);
    o->codes = codes, o->block_scales = scales;
    o->codes.data = check_memory(c, CHECK_WRITE, NULL, tensor_bytes(&codes));
    o->block_scales.data = check_memory(c, CHECK_WRITE, NULL, tensor_bytes(&scales));
}

static void call(struct check *c, const struct shape *s, struct outputs *o, const double *values) {
    const struct quantize_record before = {0, 5, 7};
    const struct step_inputs step = {.first_row = FIRST_ROW};
    const bool has_scale = quantize_format_has_tensor_scale(&s->format);
    struct tensor in = o->in =
        check_tensor(c, s->in_place ? CHECK_WRITE : CHECK_READ, s->in, s->rows, s->columns, values);
    o->out = s->in_place     ? in
             : s->misaligned ? check_misaligned(c, CHECK_WRITE, DTYPE_BF16, s->rows, s->columns)
                             : check_output(c, DTYPE_BF16, s->rows, s->columns);
    o->scales = check_output(c, DTYPE_F32, 1, 1);
    o->record = check_memory(c, CHECK_WRITE, &before, sizeof before);
    int64_t count = s->rows * s->columns;
    o->track_amax = !s->tracks ? NULL
                    : s->found ? check_amax(c, (float)amax_of(values, count), count > BAD_FROM)
                               : check_amax(c, 0, false);
    if (s->codes) make_codes(c, s, o);
    CHECK_OP(c, fake_quantize, .out = s->codes ? &o->codes : &o->out,
             .block_scales = s->codes ? &o->block_scales : NULL,
             .scales = has_scale ? &o->scales : NULL, .in = &in, .format = s->format,
             .record = o->record, .track_amax = o->track_amax, .found = s->found, .key = key,
             .inputs =
                 s->format.stochastic ? check_memory(c, CHECK_READ, &step, sizeof step) : NULL);
}

static void body(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t count = s->rows * s->columns;
    double *values = check_doubles(c, count), largest = 0;
    struct outputs o;
    bool bad = false;
    fill(values, s);
    call(c, s, &o, values);
    if (s->codes)
        CHECK_OP(c, dequantize_blocks, .out = &o.out, .codes = &o.codes,
                 .block_scales = &o.block_scales, .format = s->format);
    if (!c->verify) return;
    float tensor_scale = (float)amax_of(values, count) / 2688;
    if (tensor_scale == 0) tensor_scale = 1;
    for (int64_t row = 0; row < s->rows; row += s->format.rows)
        for (int64_t column = 0; column < s->columns; column += s->format.columns) {
            double amax = round_block(values, s, tensor_scale, row, column);
            bad = bad || isnan(amax);
            largest = isnan(amax) ? largest : fmax(largest, amax);
        }
    const double *got = check_read(c, &o.out);
    for (int64_t i = 0; i < count; i++)
        cr_assert(isnan(values[i]) ? isnan(got[i]) : got[i] == values[i],
                  "element %d of %d x %d is %.9g, expected %.9g", (int)i, (int)s->rows,
                  (int)s->columns, got[i], values[i]);
    struct quantize_record after;
    backend_download(&c->be, &after, o.record, sizeof after);
    cr_expect_eq((double)after.amax, largest);
    cr_expect_eq(after.not_finite, 5 + bad);
    cr_expect_eq(after.zero, 7 + (largest == 0 && !bad));
    if (quantize_format_has_tensor_scale(&s->format))
        cr_expect_eq(check_read(c, &o.scales)[0], tensor_scale);
    if (s->tracks && !s->in_place) check_amax_covers(c, o.track_amax, 0, false, &o.in);
}

static const int64_t sizes[][2] = {{1, 1}, {3, 32}, {33, 72}, {64, 64}, {77, 131}, {5, 1096}};
static const enum dtype in_dtypes[] = {DTYPE_BF16, DTYPE_F32, DTYPE_F16};

/* Blocks that sizes do not divide, of zeros, and with a value that is not finite. */
Test(fake_quantize, rounds_blocks) {
    static const int64_t blocks[][2] = {{1, 32}, {32, 1}, {1, 16}, {16, 1}, {1, 128}, {128, 128}};
    static const enum dtype elements[] = {DTYPE_E4M3, DTYPE_E5M2, DTYPE_E2M1};
    int n = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < sizeof blocks / sizeof *blocks; k++, n++) {
            struct shape shape = {.rows = sizes[i][0],
                                  .columns = sizes[i][1],
                                  .in = in_dtypes[n / 3 % 3],
                                  .misaligned = n % 4 == 3};
            shape.format = (struct quantize_format){elements[n % 3],
                                                    blocks[k][0],
                                                    blocks[k][1],
                                                    DTYPE_E8M0,
                                                    n % 2 ? SCALE_OF_EXPONENT : SCALE_POWER_OF_TWO,
                                                    n % 5 == 4};
            check_everywhere(body, &shape);
            shape.codes = shape.format.element != DTYPE_E2M1 || shape.columns % 2 == 0;
            if (shape.codes) check_everywhere(body, &shape);
        }
}

/* NVFP4: blocks along rows, down columns and squares; in place; with a tracked amax. */
Test(fake_quantize, rounds_to_nvfp4) {
    static const int64_t blocks[][2] = {{1, 16}, {16, 1}, {16, 16}};
    int n = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t k = 0; k < 6; k++, n++) {
            struct shape shape = {.rows = sizes[i][0],
                                  .columns = sizes[i][1],
                                  .in = in_dtypes[n % 3],
                                  .misaligned = n % 4 == 3,
                                  .in_place = in_dtypes[n % 3] == DTYPE_BF16,
                                  .tracks = n % 2 == 0,
                                  .found = n % 4 == 0};
            shape.format = (struct quantize_format){DTYPE_E2M1, blocks[k % 3][0], blocks[k % 3][1],
                                                    DTYPE_E4M3, SCALE_NEAREST,    k >= 3};
            check_everywhere(body, &shape);
            shape.codes = shape.columns % 2 == 0, shape.in_place = false;
            if (shape.codes) check_everywhere(body, &shape);
        }
}

/* Values half way, a quarter of the way, and at a value of the element. The mean of n draws has a
 * standard deviation of distance * sqrt(p (1 - p) / n); five of them are exceeded by one key in a
 * million. */
Test(fake_quantize, stochastic_rounding_keeps_the_mean) {
    enum { DRAWS = 100000 };
    static const struct {
        float value, low, distance;
    } cases[] = {{2.5f, 2, 1}, {0.125f, 0, 0.5f}, {-5.5f, -6, 2}, {3, 3, 1}, {0, 0, 0.5f}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double sum = 0, part = fabs(cases[i].value - cases[i].low) / cases[i].distance;
        for (uint32_t k = 0; k < DRAWS; k++)
            sum += element_round_stochastic(cases[i].value, DTYPE_E2M1, rounding_bits(key, k));
        cr_expect_leq(fabs(sum / DRAWS - cases[i].value),
                      5 * cases[i].distance * sqrt(part * (1 - part) / DRAWS) + 1e-9, "%g: mean %g",
                      cases[i].value, sum / DRAWS);
    }
}

/* All codes of an element, without NaN, there and back. */
Test(fake_quantize, codes_of_elements) {
    static const enum dtype elements[] = {DTYPE_E4M3, DTYPE_E5M2, DTYPE_E2M1};
    for (int i = 0; i < 3; i++) {
        double values[128];
        int count = values_of(values, elements[i]);
        uint32_t sign = elements[i] == DTYPE_E2M1 ? 8 : 0x80;
        for (uint32_t code = 0; code < (uint32_t)count; code++) {
            cr_expect_eq(element_value(code, elements[i]), values[code], "%d: %u", i, code);
            cr_expect_eq(element_code((float)values[code], elements[i]), code);
            cr_expect_eq(element_code((float)-values[code], elements[i]), code | sign);
            cr_expect_eq(element_value(code | sign, elements[i]), -values[code]);
        }
    }
}

struct fixture {
    struct safetensors file;
    char name[32];
    const char *format_name; /* in the fixture */
    struct quantize_format format;
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
    const bool has_scale = quantize_format_has_tensor_scale(&f->format);
    float *expected, *values = malloc((size_t)(rows * columns) * sizeof *values);
    double *doubles = check_doubles(c, rows * columns);
    uint16_t *stored = safetensors_data(&f->file, entry);
    snprintf(name, sizeof name, "%s.%s", f->name, f->format_name);
    expected = safetensors_data(&f->file, find(&f->file, name));
    cr_assert(values && stored && expected);
    dtype_widen(values, stored, DTYPE_BF16, 0, (size_t)(rows * columns));
    for (int64_t i = 0; i < rows * columns; i++) doubles[i] = values[i];
    struct tensor in = check_tensor(c, CHECK_READ, DTYPE_BF16, rows, columns, doubles);
    struct tensor out = check_output(c, DTYPE_BF16, rows, columns);
    struct tensor scales = check_output(c, DTYPE_F32, 1, 1);
    CHECK_OP(c, fake_quantize, .out = &out, .scales = has_scale ? &scales : NULL, .in = &in,
             .format = f->format);
    for (int64_t i = 0; i < rows * columns; i++) doubles[i] = expected[i];
    if (c->verify) check_equal(c, name, &out, doubles);
    free(values);
    free(stored);
    free(expected);
}

Test(fake_quantize, equals_torchao) {
    static const char *const names[] = {"normal", "wide", "ties", "zeros"};
    static const struct {
        const char *name;
        struct quantize_format format;
    } formats[] = {
        {"e4m3.up", {DTYPE_E4M3, 1, 32, DTYPE_E8M0, SCALE_POWER_OF_TWO, false}},
        {"e4m3.floor", {DTYPE_E4M3, 1, 32, DTYPE_E8M0, SCALE_OF_EXPONENT, false}},
        {"e5m2.up", {DTYPE_E5M2, 1, 32, DTYPE_E8M0, SCALE_POWER_OF_TWO, false}},
        {"e5m2.floor", {DTYPE_E5M2, 1, 32, DTYPE_E8M0, SCALE_OF_EXPONENT, false}},
        {"e2m1.up", {DTYPE_E2M1, 1, 32, DTYPE_E8M0, SCALE_POWER_OF_TWO, false}},
        {"e2m1.floor", {DTYPE_E2M1, 1, 32, DTYPE_E8M0, SCALE_OF_EXPONENT, false}},
        {"nvfp4", {DTYPE_E2M1, 1, 16, DTYPE_E4M3, SCALE_NEAREST, false}},
    };
    struct fixture f;
    struct error error;
    cr_assert(safetensors_open(&f.file, "test/golden/mx.safetensors", &error) == 0, "%s",
              error.text);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t k = 0; k < sizeof formats / sizeof *formats; k++) {
            snprintf(f.name, sizeof f.name, "%s", names[i]);
            f.format_name = formats[k].name;
            f.format = formats[k].format;
            check_everywhere(torchao, &f);
        }
    safetensors_close(&f.file);
}

static const char *const variants[] = {"mxfp8",
                                       "mxfp8 of columns",
                                       "mxfp4",
                                       "nvfp4",
                                       "nvfp4 of columns, stochastic",
                                       "nvfp4 of squares",
                                       NULL};

static size_t time_fake_quantize(struct bench *b, int variant) {
    static const struct quantize_format formats[] = {
        {DTYPE_E4M3, 1, 32, DTYPE_E8M0, SCALE_POWER_OF_TWO, false},
        {DTYPE_E4M3, 32, 1, DTYPE_E8M0, SCALE_POWER_OF_TWO, false},
        {DTYPE_E2M1, 1, 32, DTYPE_E8M0, SCALE_POWER_OF_TWO, false},
        {DTYPE_E2M1, 1, 16, DTYPE_E4M3, SCALE_NEAREST, false},
        {DTYPE_E2M1, 16, 1, DTYPE_E4M3, SCALE_NEAREST, true},
        {DTYPE_E2M1, 16, 16, DTYPE_E4M3, SCALE_NEAREST, false},
    };
    const bool has_scale = quantize_format_has_tensor_scale(&formats[variant]);
    struct tensor in = bench_rows(b, DTYPE_BF16, BENCH_HIDDEN);
    struct tensor out = bench_rows(b, DTYPE_BF16, BENCH_HIDDEN);
    struct tensor scales = arena_tensor(&b->arena, DTYPE_F32, 1, 1);
    struct tensor inputs = arena_tensor(&b->arena, DTYPE_F32, 1, sizeof(struct step_inputs));
    struct tensor amax = arena_tensor(&b->arena, DTYPE_F32, 1, sizeof(struct amax));
    OP(&b->be, fake_quantize, .out = &out, .scales = has_scale ? &scales : NULL, .in = &in,
       .format = formats[variant], .inputs = inputs.data,
       .track_amax = has_scale ? (struct amax *)amax.data : NULL, .found = has_scale);
    return 2 * tensor_bytes(&in);
}
BENCH(fake_quantize, forward, variants, time_fake_quantize)
