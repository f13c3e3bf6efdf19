/* Column sums by themselves. */
#include <criterion/criterion.h>

#include "test/device.h"
#include "test/kernels/check.h"

struct shape {
    int64_t rows, columns;
    enum dtype in, sums;
    bool odd; /* begins one element past a vector's alignment */
};

static const struct shape shapes[] = {
    {1, 1, DTYPE_F32, DTYPE_F32, false},
    {77, 40, DTYPE_BF16, DTYPE_F32, false},
    {64, 256, DTYPE_BF16, DTYPE_BF16, false}, /* one group, one tile */
    {65, 264, DTYPE_F16, DTYPE_F32, false},   /* two of each */
    {333, 515, DTYPE_F16, DTYPE_F16, false},
    {200, 48, DTYPE_BF16, DTYPE_F32, true},
    {9, 72, DTYPE_F32, DTYPE_BF16, true},
    {500, 2760, DTYPE_BF16, DTYPE_F32, false}, /* the last tile is not full */
    {131073, 1, DTYPE_BF16, DTYPE_F32, false}, /* so many rows that groups of them grow */
    {1, 525000, DTYPE_BF16, DTYPE_F32, false}, /* more tiles than blocks are used */
};

static void column_sums(struct check *c, const void *given) {
    const struct shape *s = given;
    int64_t odd = s->odd, count = s->rows * s->columns;
    struct tensor whole = check_normal(c, s->in, count + odd, 0, 1.0);
    struct tensor part = tensor_range(&whole, odd, count);
    struct tensor in = tensor_view(&part, s->rows, s->columns);
    struct tensor sums = check_sum(c, s->sums, s->columns, 0);
    double *before = check_read(c, &sums);
    CHECK_OP(c, column_sums, .sums = &sums, .in = &in);
    if (c->verify) check_column_sums(c, &sums, before, &in);
}

Test(column_sums, shapes) {
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        check_everywhere(column_sums, &shapes[s]);
}
