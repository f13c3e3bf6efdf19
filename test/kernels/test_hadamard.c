#include <criterion/criterion.h>
#include <math.h>

#include "kernels/hadamard.h"
#include "test/kernels/bench.h"
#include "test/kernels/check.h"

struct shape {
    int64_t rows, columns;
    enum dtype in;
    uint32_t signs;
    bool misaligned, tracks;
};

/* Element of H diag(signs) / 4. */
static double element_of(uint32_t signs, int row, int column) {
    bool negative = (__builtin_popcount((unsigned)(row & column)) + (signs >> column & 1)) % 2;
    return negative ? -0.25 : 0.25;
}

static void body(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensor in = check_normal(c, s->in, s->rows, s->columns, 1.0);
    struct tensor out = s->misaligned
                            ? check_misaligned(c, CHECK_WRITE, DTYPE_BF16, s->rows, s->columns)
                            : check_output(c, DTYPE_BF16, s->rows, s->columns);
    struct amax *amax = s->tracks ? check_amax(c, 0.5f, false) : NULL;
    CHECK_OP(c, hadamard, .out = &out, .in = &in, .signs = s->signs, .track_amax = amax);
    if (!c->verify) return;
    const double *x = check_read(c, &in);
    double *expected = check_doubles(c, s->rows * s->columns);
    double *magnitude = check_doubles(c, s->rows * s->columns);
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t column = 0; column < s->columns; column++) {
            int64_t first = row / HADAMARD_SIZE * HADAMARD_SIZE, at = row * s->columns + column;
            bool whole = first + HADAMARD_SIZE <= s->rows;
            expected[at] = whole ? 0 : x[at];
            for (int k = 0; whole && k < HADAMARD_SIZE; k++) {
                double term = element_of(s->signs, (int)(row - first), k) *
                              x[(first + k) * s->columns + column];
                expected[at] += term, magnitude[at] += fabs(term);
            }
        }
    check_close(c, "hadamard", &out, expected, magnitude);
    if (amax) check_amax_covers(c, amax, 0.5f, false, &out);
}

/* Rows that 16 does not divide; columns that no vector divides. */
Test(hadamard, transforms_16_rows) {
    static const struct shape shapes[] = {
        {1, 1, DTYPE_F32, 0, false, false},          {16, 64, DTYPE_BF16, 0xbeef, false, true},
        {33, 72, DTYPE_BF16, 0x8001, true, false},   {77, 131, DTYPE_F16, 0x1234, false, true},
        {64, 1096, DTYPE_F32, 0xffff, false, false},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_everywhere(body, &shapes[i]);
}

static size_t time_hadamard(struct bench *b, int variant) {
    struct tensor in = bench_rows(b, (enum dtype)variant, BENCH_HIDDEN);
    struct tensor out = bench_rows(b, DTYPE_BF16, BENCH_HIDDEN);
    struct tensor amax = arena_tensor(&b->arena, DTYPE_F32, 1, sizeof(struct amax));
    OP(&b->be, hadamard, .out = &out, .in = &in, .signs = 0xbeef, .track_amax = amax.data);
    return tensor_bytes(&in) + tensor_bytes(&out);
}
BENCH(hadamard, forward, bench_dtypes, time_hadamard)
