#include <criterion/criterion.h>
#include <math.h>

#include "test/kernels/bench.h"
#include "test/kernels/check.h"

struct shape {
    int64_t rows, columns;
    enum dtype dtype;
    double cap, spread; /* spread: standard deviation of x */
    bool odd;           /* the array begins at an odd offset */
};

static const struct shape shapes[] = {
    {1, 1, DTYPE_F32, 30, 3, false},       {77, 61, DTYPE_F32, 30, 30, false},
    {26, 1536, DTYPE_BF16, 30, 3, false},  {13, 201, DTYPE_F16, 50, 100, false},
    {5, 50304, DTYPE_BF16, 30, 40, false}, {9, 520, DTYPE_F32, 7.3f, 5, false},
    {9, 512, DTYPE_F16, 0.1f, 1, true},    {33, 64, DTYPE_F32, 30, 1e-3, true},
};

static void values(struct check *c, const void *given) {
    const struct shape *s = given;
    const int64_t count = s->rows * s->columns;
    struct tensor random = check_normal(c, DTYPE_F32, count + 1, 0, s->spread);
    struct tensor all =
        check_tensor(c, CHECK_WRITE, s->dtype, count + 1, 0, check_read(c, &random));
    struct tensor range = tensor_range(&all, s->odd, count);
    struct tensor inout = tensor_view(&range, s->rows, s->columns);
    double *x = check_read(c, &inout), *before = check_read(c, &all);
    CHECK_OP(c, softcap, .inout = &inout, .cap = (float)s->cap);
    if (!c->verify) return;
    for (int64_t i = 0; i < count; i++) x[i] = s->cap * tanh(x[i] / s->cap);
    check_close(c, "softcap", &inout, x, x);
    cr_assert_eq(check_read(c, &all)[s->odd ? 0 : count], before[s->odd ? 0 : count]);
}

Test(softcap, values) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_everywhere(values, &shapes[i]);
}

/* Infinities become the cap, exactly, zeros keep their sign, and a NaN stays NaN. */
static void far_out(struct check *c, const void *given) {
    const double in[] = {INFINITY, -INFINITY, 60000, -60000, 0.0, -0.0, NAN};
    struct tensor inout = check_tensor(c, CHECK_WRITE, *(const enum dtype *)given, 7, 0, in);
    CHECK_OP(c, softcap, .inout = &inout, .cap = 30);
    const double *y = check_read(c, &inout);
    for (int i = 0; i < 4; i++) cr_assert_eq(y[i], i % 2 ? -30 : 30, "%g became %g", in[i], y[i]);
    cr_assert(y[4] == 0 && !signbit(y[4]) && y[5] == 0 && signbit(y[5]));
    cr_assert(isnan(y[6]));
}

Test(softcap, far_out) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    for (int i = 0; i < 3; i++) check_everywhere(far_out, &dtypes[i]);
}

static size_t time_softcap(struct bench *b, int variant) {
    struct tensor x = bench_rows(b, (enum dtype)variant, BENCH_HIDDEN);
    OP(&b->be, softcap, .inout = &x, .cap = 30);
    return 2 * tensor_bytes(&x);
}
BENCH(softcap, in_place, bench_dtypes, time_softcap)
