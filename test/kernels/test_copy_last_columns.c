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
