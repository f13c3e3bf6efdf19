#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "test/kernels/check.h"

/* Parts of a matrix with rows of one part, of several with gaps, and of none. */
struct shape {
    int64_t rows;
    int count;
    struct {
        int64_t first_row, rows, columns;
    } parts[DIAGONAL_BLOCKS_MAX];
    enum dtype dtype; /* dtype of the matrix, or of the gradients of the parts */
};

static const struct shape shapes[] = {
    {9, 1, {{0, 9, 5}}, DTYPE_F32},
    {48, 3, {{0, 36, 5}, {36, 6, 5}, {42, 6, 5}}, DTYPE_BF16},
    {48, 2, {{36, 6, 16}, {42, 6, 16}}, DTYPE_F16},
    {77, 2, {{0, 40, 1}, {41, 36, 3}}, DTYPE_BF16},
    {700, 1, {{100, 600, 33}}, DTYPE_F32},
};

static int64_t columns_of(const struct shape *s) {
    int64_t columns = 0;
    for (int i = 0; i < s->count; i++) columns += s->parts[i].columns;
    return columns;
}

/* CHECK_OP for arguments in a struct. */
#define CHECK_BLOCKS(c, name, args)       \
    do {                                  \
        check_plan_begin(c);              \
        (c)->be.op->name(&(c)->be, args); \
        check_plan_end(c, #name);         \
        (c)->be.op->name(&(c)->be, args); \
        check_finished(c, #name);         \
    } while (0)

static void forward(struct check *c, const void *given) {
    const struct shape *s = given;
    const float scale = 0.7f;
    int64_t columns = columns_of(s), column = 0;
    struct tensor out = check_output(c, s->dtype, s->rows, columns);
    struct block_diagonal_forward_args args = {.out = &out, .count = s->count, .scale = scale};
    for (int i = 0; i < s->count; i++)
        args.blocks[i] = (struct diagonal_block){
            check_normal(c, DTYPE_F32, s->parts[i].rows, s->parts[i].columns, 1.0),
            s->parts[i].first_row};
    CHECK_BLOCKS(c, block_diagonal_forward, &args);
    if (!c->verify) return;
    double *expected = check_doubles(c, s->rows * columns);
    for (int i = 0; i < s->count; i++) {
        const double *part = check_read(c, &args.blocks[i].part);
        int64_t width = s->parts[i].columns;
        for (int64_t k = 0; k < s->parts[i].rows * width; k++)
            expected[(s->parts[i].first_row + k / width) * columns + column + k % width] =
                (double)scale * part[k];
        column += width;
    }
    check_close(c, "block_diagonal_forward", &out, expected, NULL);
}

Test(block_diagonal, forward) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_everywhere(forward, &shapes[i]);
}

static void backward(struct check *c, const struct shape *s, bool accumulate) {
    const float scale = 1.3f;
    int64_t columns = columns_of(s), column = 0;
    struct tensor dout = check_normal(c, DTYPE_F32, s->rows, columns, 1.0);
    struct block_diagonal_backward_args args = {
        .dout = &dout, .count = s->count, .scale = scale, .accumulate = accumulate};
    const double *before[DIAGONAL_BLOCKS_MAX] = {NULL};
    for (int i = 0; i < s->count; i++) {
        int64_t rows = s->parts[i].rows, width = s->parts[i].columns;
        args.dblocks[i].part = accumulate ? check_sum(c, s->dtype, rows, width)
                                          : check_output(c, s->dtype, rows, width);
        args.dblocks[i].first_row = s->parts[i].first_row;
        if (accumulate && c->verify) before[i] = check_read(c, &args.dblocks[i].part);
    }
    CHECK_BLOCKS(c, block_diagonal_backward, &args);
    if (!c->verify) return;
    const double *gradient = check_read(c, &dout);
    for (int i = 0; i < s->count; i++) {
        int64_t width = s->parts[i].columns, count = s->parts[i].rows * width;
        double *expected = check_doubles(c, count);
        for (int64_t k = 0; k < count; k++)
            expected[k] =
                (before[i] ? before[i][k] : 0) +
                (double)scale *
                    gradient[(s->parts[i].first_row + k / width) * columns + column + k % width];
        check_close(c, "block_diagonal_backward", &args.dblocks[i].part, expected, NULL);
        column += width;
    }
}

static void replaces(struct check *c, const void *given) {
    backward(c, given, false);
}

static void accumulates(struct check *c, const void *given) {
    backward(c, given, true);
}

Test(block_diagonal, backward) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_everywhere(replaces, &shapes[i]);
        check_everywhere(accumulates, &shapes[i]);
    }
}
