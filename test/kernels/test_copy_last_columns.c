#include <criterion/criterion.h>
#include <string.h>

#include "test/kernels/check.h"

struct shape {
    int64_t rows, in_columns, columns;
    enum dtype dtype;
    bool odd; /* the rows of in begin at an odd offset */
};

static void body(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensor in = s->odd ? check_misaligned(c, CHECK_READ, s->dtype, s->rows, s->in_columns)
                              : check_normal(c, s->dtype, s->rows, s->in_columns, 1.0);
    struct tensor out = check_output(c, s->dtype, s->rows, s->columns);
    CHECK_OP(c, copy_last_columns, .out = &out, .in = &in);
    if (!c->verify) return;
    const double *from = check_read(c, &in), *got = check_read(c, &out);
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t i = 0; i < s->columns; i++)
            cr_assert_eq(got[row * s->columns + i],
                         from[(row + 1) * s->in_columns - s->columns + i]);
}

/* Rows go to those of the last keys of their queries. */
static void keyed_body(struct check *c, const void *given) {
    enum { ROWS = 5, OUT = 40, WIDE = 24, COLUMNS = 16, STRIDE = 3 };
    static const struct decode_keys keys[ROWS] = {
        {0, 2, 4, 3}, {0, 2, 30, 1}, {17, 4, 0, 0}, {0, 0, 5, 10}, {3, 1, 39, 1}};
    static const int to[ROWS] = {10, 30, 20, 32, 39};
    const enum dtype dtype = *(const enum dtype *)given;
    struct tensor in = check_normal(c, dtype, ROWS, WIDE, 1.0);
    struct tensor out = check_sum(c, dtype, OUT, COLUMNS);
    double *expected = check_doubles(c, OUT * COLUMNS);
    const size_t bytes = COLUMNS * sizeof *expected;
    memcpy(expected, check_read(c, &out), OUT * bytes);
    for (int row = 0; row < ROWS; row++)
        memcpy(expected + to[row] * COLUMNS, check_read(c, &in) + (row + 1) * WIDE - COLUMNS,
               bytes);
    CHECK_OP(c, copy_last_columns, .out = &out, .in = &in, .keys = check_decode_keys(c, keys, ROWS),
             .stride = STRIDE);
    if (c->verify) check_equal(c, "copy_last_columns", &out, expected);
}

Test(copy_last_columns, to_the_rows_of_keys) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16};
    for (size_t i = 0; i < 2; i++) check_everywhere(keyed_body, &dtypes[i]);
}

Test(copy_last_columns, of_each_row) {
    static const struct shape shapes[] = {
        {1, 1, 1, DTYPE_F32, false},       {5, 9, 4, DTYPE_F32, false},
        {77, 96, 64, DTYPE_BF16, false},   {300, 48, 16, DTYPE_F32, false},
        {33, 72, 48, DTYPE_F16, true},     {7, 24, 9, DTYPE_BF16, false},
        {13, 20, 16, DTYPE_BF16, false}, /* rows that begin within 16 bytes */
        {4, 1024, 1024, DTYPE_F16, false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_everywhere(body, &shapes[i]);
}
