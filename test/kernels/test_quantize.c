/* Rounding to 8 bits with scales, and the end-of-step update of the amax history. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "test/device.h"
#include "test/kernels/check.h"

/* Blocks that share a scale; 0: the whole extent. The CPU takes them all, CUDA the first five. */
enum granularity {
    WHOLE,
    BY_ROWS,
    BY_COLUMNS,
    ROWS_OF_8,
    COLUMNS_OF_4,
    TILES,
    BANDS,
    GRANULARITIES
};
static const int64_t blocks[GRANULARITIES][2] = {{0, 0}, {1, 0}, {0, 1}, {1, 8},
                                                 {4, 1}, {4, 8}, {4, 0}};

enum plant { NOTHING, ZEROS, BAD_ZEROS, INFINITE, TINY, LARGE, ZERO_ROW };

struct shape {
    int64_t rows, columns;
    enum dtype in, out;
    enum granularity by;
    bool power_of_two;
    enum plant plant;
    float amax; /* given amax; 0: none, negative: an amax of zero is given */
    enum { OUT, TRANSPOSED, BOTH } order;
    enum { UNKNOWN, JOINED, FOUND } track_amax;
};

static double *planted(struct check *c, const struct shape *s) {
    struct tensor random = check_normal(c, s->in, s->rows, s->columns, 0.7);
    double *values = check_read(c, &random);
    int64_t count = s->rows * s->columns;
    for (int64_t i = 0; i < count; i++) {
        if (s->plant == ZEROS || s->plant == BAD_ZEROS ||
            (s->plant == ZERO_ROW && i / s->columns == s->rows / 2))
            values[i] = i & 1 ? -0.0 : 0.0;
        if (s->plant == LARGE) values[i] = ldexp(values[i], 100);
        if (s->plant == TINY) values[i] = check_round(ldexp(values[i], -130), s->in);
    }
    if (s->plant == BAD_ZEROS) values[0] = INFINITY;
    if (s->plant == INFINITE) {
        values[0] = INFINITY;
        values[count / 2] = NAN;
        values[count - 1] = -INFINITY;
    }
    return values;
}

static struct tensor scales_of(const struct shape *s) {
    const struct quantize_format format = {s->out,    blocks[s->by][0], blocks[s->by][1],
                                           DTYPE_F32, SCALE_NEAREST,    false};
    return quantize_format_scales(&format, s->rows, s->columns);
}

static int64_t group_of(const struct shape *s, int64_t i) {
    int64_t rows = blocks[s->by][0], columns = blocks[s->by][1];
    int64_t row = rows ? i / s->columns / rows : 0, column = columns ? i % s->columns / columns : 0;
    return row * (columns ? s->columns / columns : 1) + column;
}

/* The formula of struct quantize_args, in the arithmetic that it specifies. */
static float factor_of(const struct shape *s, double amax) {
    float max = s->out == DTYPE_E4M3 ? 448.0f : 57344.0f;
    float factor = amax > 0 ? max / (float)amax : 1.0f;
    if (factor > 0x1p126f) factor = 0x1p126f;
    return s->power_of_two ? ldexpf(1, ilogbf(factor)) : factor;
}

static uint8_t code_of(double value, float factor, enum dtype dtype) {
    float product = (float)value * factor, max = dtype == DTYPE_E4M3 ? 448.0f : 57344.0f;
    if (isfinite(value) && fabsf(product) > max) product = copysignf(max, product);
    if (isinf(value)) product = (float)value;
    return f8_from_f32(product, dtype);
}

static void verify(const struct shape *s, const double *values, const uint8_t *codes,
                   const float *scales, const struct quantize_record *record) {
    const struct tensor shape = scales_of(s);
    int64_t count = s->rows * s->columns, groups = tensor_count(&shape);
    double amax[4096] = {0}, largest = 0;
    bool bad = false;
    cr_assert_leq(groups, 4096);
    for (int64_t i = 0; i < count; i++) {
        double *group = &amax[group_of(s, i)];
        if (!isfinite(values[i])) bad = true;
        else if (fabs(values[i]) > *group) *group = fabs(values[i]);
        largest = fmax(largest, *group);
    }
    cr_expect_eq(record->amax, fmaxf((float)largest, 0.125f));
    cr_expect_eq(record->not_finite, 5 + bad);
    cr_expect_eq(record->zero, 7 + (largest == 0 && !bad));
    for (int64_t group = 0; group < groups; group++) {
        float factor = factor_of(s, s->amax > 0 ? (double)s->amax : amax[group]);
        cr_assert_eq(scales[group], 1 / factor, "scale %d is %a, not %a", (int)group,
                     (double)scales[group], (double)(1 / factor));
    }
    for (int64_t i = 0; i < count; i++) {
        double own = s->amax > 0 ? (double)s->amax : amax[group_of(s, i)];
        uint8_t wanted = code_of(values[i], factor_of(s, own), s->out);
        cr_assert_eq(codes[i], wanted, "%a became 0x%02x, not 0x%02x", values[i], codes[i], wanted);
    }
}

/* Returns a known amax, or memory for one. */
static struct amax *amax_of(struct check *c, const struct shape *s, const double *values) {
    double largest = 0;
    bool bad = false;
    if (s->track_amax == UNKNOWN) return NULL;
    if (s->track_amax == JOINED) return check_amax(c, 0, false);
    for (int64_t i = 0; i < s->rows * s->columns; i++) {
        if (!isfinite(values[i])) bad = true;
        else largest = fmax(largest, fabs(values[i]));
    }
    return check_amax(c, (float)largest, bad);
}

/* Transposes the transposed codes back into `codes`. If the operation wrote both orders, they
 * must agree. */
static void check_transposed(struct check *c, const struct shape *s, uint8_t *codes,
                             const struct tensor *transposed) {
    size_t count = (size_t)(s->rows * s->columns);
    uint8_t *transposed_codes = malloc(count);
    backend_download(&c->be, transposed_codes, transposed->data, count);
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t column = 0; column < s->columns; column++) {
            uint8_t *code = &codes[row * s->columns + column];
            uint8_t other = transposed_codes[column * s->rows + row];
            if (s->order == BOTH) cr_assert_eq(*code, other);
            *code = other;
        }
    free(transposed_codes);
}

static void body(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t count = s->rows * s->columns;
    struct tensor scales = scales_of(s);
    size_t bytes = tensor_bytes(&scales);
    const struct quantize_record before = {0.125f, 5, 7};
    float amax = s->amax > 0 ? s->amax : 0;
    double *values = planted(c, s);
    struct amax *tracked = amax_of(c, s, values);
    struct tensor in = check_tensor(c, CHECK_READ, s->in, s->rows, s->columns, values);
    struct tensor out = {
        check_memory(c, CHECK_WRITE, NULL, (size_t)count), s->out, 2, {s->rows, s->columns}};
    struct tensor transposed = out;
    if (s->order != OUT)
        transposed = (struct tensor){
            check_memory(c, CHECK_WRITE, NULL, (size_t)count), s->out, 2, {s->columns, s->rows}};
    scales.data = check_memory(c, CHECK_WRITE, NULL, bytes);
    struct quantize_record *record = check_memory(c, CHECK_WRITE, &before, sizeof before);
    const float *handed = s->amax == 0 ? NULL : check_memory(c, CHECK_READ, &amax, sizeof amax);
    CHECK_OP(c, quantize, .out = s->order == TRANSPOSED ? NULL : &out,
             .transposed = s->order == OUT ? NULL : &transposed, .track_amax = tracked,
             .found = s->track_amax == FOUND, .scales = &scales, .in = &in, .amax = handed,
             .record = record,
             .scale_rounding = s->power_of_two ? SCALE_POWER_OF_TWO : SCALE_NEAREST);
    if (!c->verify) return;
    uint8_t *codes = malloc((size_t)count);
    float *found = malloc(bytes);
    struct quantize_record after;
    if (s->order != TRANSPOSED) backend_download(&c->be, codes, out.data, (size_t)count);
    if (s->order != OUT) check_transposed(c, s, codes, &transposed);
    if (s->track_amax == JOINED) check_amax_covers(c, tracked, 0, false, &in);
    backend_download(&c->be, found, scales.data, bytes);
    backend_download(&c->be, &after, record, sizeof after);
    verify(s, values, codes, found, &after);
    free(codes);
    free(found);
}

Test(quantize, shapes_and_scales) {
    static const int64_t sizes[][2] = {{1, 1},    {77, 72}, {33, 50}, {64, 512},
                                       {300, 40}, {3, 500}, {40, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int by = 0; by < 3; by++)
            for (int variant = 0; variant < 4; variant++) {
                struct shape s = {sizes[i][0],
                                  sizes[i][1],
                                  DTYPE_BF16,
                                  variant & 1 ? DTYPE_E5M2 : DTYPE_E4M3,
                                  (enum granularity)by,
                                  variant & 2,
                                  NOTHING,
                                  0,
                                  OUT,
                                  UNKNOWN};
                check_everywhere(body, &s);
            }
}

Test(quantize, other_dtypes) {
    for (int by = 0; by < 3; by++)
        for (int variant = 0; variant < 4; variant++) {
            struct shape s = {37,
                              72,
                              variant & 1 ? DTYPE_F32 : DTYPE_F16,
                              variant & 2 ? DTYPE_E5M2 : DTYPE_E4M3,
                              (enum granularity)by,
                              false,
                              NOTHING,
                              0,
                              OUT,
                              UNKNOWN};
            check_everywhere(body, &s);
        }
}

/* A GPU's warp keeps 3072 values of 16 bit and 1536 of 32; what follows is read twice. */
Test(quantize, long_rows) {
    static const int64_t columns[] = {1536, 3072, 3081, 4104};
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F32, DTYPE_F16};
    for (int i = 0; i < 4 * 3; i++) {
        struct shape s = {3,
                          columns[i % 4],
                          dtypes[i / 4],
                          i & 1 ? DTYPE_E5M2 : DTYPE_E4M3,
                          BY_ROWS,
                          false,
                          i % 5 ? NOTHING : INFINITE,
                          0,
                          OUT,
                          UNKNOWN};
        check_everywhere(body, &s);
    }
}

/* Blocks of other shapes; those one column wide are also more than a thread takes at a time. */
Test(quantize, blocks) {
    static const int64_t sizes[][2] = {{4, 8}, {12, 72}, {64, 168}};
    for (int i = 0; i < 3 * 4 * 2 * 2; i++) {
        struct shape s = {sizes[i % 3][0],
                          sizes[i % 3][1],
                          i & 1 ? DTYPE_BF16 : DTYPE_F32,
                          i / 24 ? DTYPE_E5M2 : DTYPE_E4M3,
                          (enum granularity)(ROWS_OF_8 + i / 3 % 4),
                          i / 12 % 2,
                          i % 5 ? NOTHING : INFINITE,
                          0,
                          OUT,
                          UNKNOWN};
        if (test_device() == DEVICE_CPU || s.by <= COLUMNS_OF_4) check_everywhere(body, &s);
    }
}

/* ---- formats */

Test(quantize, scales_of_formats) {
    const struct quantize_format format = {DTYPE_E4M3, 1, 32, DTYPE_F32, SCALE_NEAREST, false};
    const struct quantize_format turned = quantize_format_transposed(&format);
    const struct quantize_format again = quantize_format_transposed(&turned);
    const struct quantize_format whole = {.element = DTYPE_E4M3, .scale = DTYPE_F32};
    struct tensor scales = quantize_format_scales(&format, 48, 128);
    cr_expect_eq(tensor_rows(&scales), 48);
    cr_expect_eq(tensor_columns(&scales), 4);
    cr_expect_eq(scales.dtype, DTYPE_F32);
    scales = quantize_format_scales(&turned, 128, 48);
    cr_expect_eq(tensor_rows(&scales), 4);
    cr_expect_eq(tensor_columns(&scales), 48);
    scales = quantize_format_scales(&whole, 48, 128);
    cr_expect_eq(tensor_count(&scales), 1);
    cr_expect(quantize_format_equal(&format, &again));
    cr_expect_not(quantize_format_equal(&format, &turned));
    cr_expect(quantize_format_per_tensor(&whole));
    cr_expect_not(quantize_format_per_tensor(&format));
}

/* Zeros keep their signs, non-finite values are counted and stay, and the smallest numbers do
 * not overflow their scale. */
Test(quantize, special_values) {
    for (int plant = ZEROS; plant <= ZERO_ROW; plant++)
        for (int by = 0; by < 3; by++)
            for (int variant = 0; variant < 4; variant++) {
                struct shape s = {21,
                                  40,
                                  DTYPE_BF16,
                                  variant & 1 ? DTYPE_E5M2 : DTYPE_E4M3,
                                  (enum granularity)by,
                                  variant & 2,
                                  (enum plant)plant,
                                  0,
                                  OUT,
                                  UNKNOWN};
                check_everywhere(body, &s);
            }
}

/* Larger values than expected saturate, even where the product with the scale overflows. An amax
 * of 0 means unknown. */
Test(quantize, an_amax_that_is_handed_in) {
    static const float amaxes[] = {-1, 1e-30f, 0.3f, 5, 1e30f};
    for (size_t i = 0; i < sizeof amaxes / sizeof *amaxes; i++)
        for (int plant = 0; plant < ZERO_ROW; plant++) {
            struct shape s = {21,    40,     DTYPE_BF16,        i & 1 ? DTYPE_E5M2 : DTYPE_E4M3,
                              WHOLE, false,  (enum plant)plant, amaxes[i],
                              OUT,   UNKNOWN};
            check_everywhere(body, &s);
        }
}

/* Shapes with and without tiles; the amax comes from other operations, is for other operations,
 * or is from earlier steps. */
Test(quantize, transposed_and_known) {
    static const int64_t sizes[][2] = {{1, 1},   {77, 72},   {48, 16},
                                       {16, 48}, {144, 272}, {256, 128}};
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_BF16, DTYPE_F32, DTYPE_F16};
    for (int i = 0; i < 6 * 2 * 3 * 3 * 3; i++) {
        int by = i % 2, order = i / 2 % 3, magnitude = i / 6 % 3, handed = i / 18 % 3;
        if (by == 0 && magnitude + handed == 0 && order == 0) continue; /* tested above */
        if (by == 1 && magnitude + handed > 0) continue;
        struct shape s = {sizes[i / 54][0],
                          sizes[i / 54][1],
                          types[i % 4],
                          i % 3 ? DTYPE_E4M3 : DTYPE_E5M2,
                          by ? BY_COLUMNS : WHOLE,
                          i % 5 == 0,
                          i % 7 == 0 ? (enum plant)(i / 7 % ZERO_ROW) : NOTHING,
                          handed == 0   ? 0
                          : handed == 1 ? 0.7f
                                        : -1,
                          order,
                          magnitude};
        check_everywhere(body, &s);
    }
}

/* ---- quantize_history */

enum { RANKS = 3, EACH = 300, TENSORS = 290, LENGTH = 4, AT = 2, STEP = 5 * LENGTH + AT };

static void history_body(struct check *c, const void *given) {
    static struct quantize_record records[RANKS * EACH];
    static float history[LENGTH * TENSORS], expected[LENGTH * TENSORS], got[TENSORS];
    const struct step_state zero = {.loss = 3, .quantized_not_finite = 99, .quantized_zero = 99};
    bool keeps = *(const bool *)given;
    int32_t not_finite = 0, zeros = 0;
    for (int i = 0; i < RANKS * EACH; i++) {
        records[i] = (struct quantize_record){(float)(i * 37 % 101), i % 3 == 0, i % 5 == 0};
        if (i % EACH >= TENSORS) records[i].not_finite = 1000; /* not used by any tensor */
        else not_finite += records[i].not_finite, zeros += records[i].zero;
    }
    for (int i = 0; i < LENGTH * TENSORS; i++) history[i] = (float)(i * 53 % 97);
    struct step_state *state = check_memory(c, CHECK_WRITE, &zero, sizeof zero);
    const struct quantize_record *seen = check_memory(c, CHECK_READ, records, sizeof records);
    const struct step_inputs inputs = {.step = STEP};
    const struct step_inputs *place = check_memory(c, CHECK_READ, &inputs, sizeof inputs);
    float *amax = check_memory(c, CHECK_WRITE, NULL, sizeof got);
    float *kept = check_memory(c, CHECK_WRITE, history, sizeof history);
    CHECK_OP(c, quantize_history, .state = state, .amax = keeps ? amax : NULL,
             .history = keeps ? kept : NULL, .records = seen, .inputs = keeps ? place : NULL,
             .ranks = RANKS, .each = EACH, .count = TENSORS, .length = LENGTH, .margin = 4);
    struct step_state after;
    backend_download(&c->be, &after, state, sizeof after);
    cr_expect_eq(after.quantized_not_finite, not_finite);
    cr_expect_eq(after.quantized_zero, zeros);
    cr_expect_eq(after.loss, 3);
    if (!keeps) return;
    memcpy(expected, history, sizeof expected);
    for (int i = 0; i < TENSORS; i++) {
        float largest = 0;
        for (int rank = 0; rank < RANKS; rank++)
            largest = fmaxf(largest, records[rank * EACH + i].amax);
        expected[AT * TENSORS + i] = largest;
    }
    backend_download(&c->be, history, kept, sizeof history);
    backend_download(&c->be, got, amax, sizeof got);
    cr_expect_arr_eq(history, expected, sizeof history);
    for (int i = 0; i < TENSORS; i++) {
        float largest = 0;
        for (int row = 0; row < LENGTH; row++)
            largest = fmaxf(largest, expected[row * TENSORS + i]);
        cr_expect_eq(got[i], 4 * largest, "%d", i);
    }
}

Test(quantize, history_of_all_ranks) {
    for (int keeps = 0; keeps < 2; keeps++) {
        bool given = keeps;
        check_everywhere(history_body, &given);
    }
}
