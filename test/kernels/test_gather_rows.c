#include <criterion/criterion.h>

#include "test/kernels/check.h"

struct shape {
    int64_t rows, from, columns;
    enum dtype dtype;
    bool odd; /* the rows of in begin at an odd offset */
};

static int32_t row_of(const struct shape *s, int64_t i) {
    return i % 4 == 2 ? -1 - (int32_t)i : (int32_t)((i * 7 + 3) % s->from);
}

static void body(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensor in = s->odd ? check_misaligned(c, CHECK_READ, s->dtype, s->from, s->columns)
                              : check_normal(c, s->dtype, s->from, s->columns, 1.0);
    struct tensor out = check_output(c, s->dtype, s->rows, s->columns);
    int32_t *rows = (int32_t *)(void *)check_doubles(c, s->rows);
    for (int64_t i = 0; i < s->rows; i++) rows[i] = row_of(s, i);
    CHECK_OP(c, gather_rows, .out = &out, .in = &in,
             .rows = check_memory(c, CHECK_READ, rows, (size_t)s->rows * sizeof *rows));
    if (!c->verify) return;
    const double *from = check_read(c, &in), *got = check_read(c, &out);
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t k = 0; k < s->columns; k++)
            cr_assert_eq(got[i * s->columns + k], rows[i] < 0 ? 0 : from[rows[i] * s->columns + k]);
}

/* Rows without one are zeros, whatever was there. */
Test(gather_rows, by_their_numbers) {
    static const struct shape shapes[] = {
        {1, 1, 1, DTYPE_F32, false},      {5, 9, 4, DTYPE_F32, false},
        {77, 96, 72, DTYPE_BF16, false},  {300, 48, 16, DTYPE_F32, false},
        {33, 72, 48, DTYPE_F16, true},    {7, 24, 9, DTYPE_BF16, false},
        {64, 13, 1024, DTYPE_F16, false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_everywhere(body, &shapes[i]);
}
