#include <criterion/criterion.h>
#include <math.h>

#include "test/kernels/golden.h"
#include "test/kernels/reference.h"

struct shape {
    int64_t count;
    enum dtype in, out;
    bool relu2;
};

static const struct shape shapes[] = {
    {1, DTYPE_F32, DTYPE_F32, false},      {77 * 72, DTYPE_F32, DTYPE_F32, false},
    {5000, DTYPE_BF16, DTYPE_BF16, false}, {5001, DTYPE_F16, DTYPE_F16, false},
    {1025, DTYPE_F32, DTYPE_BF16, false},  {513, DTYPE_F16, DTYPE_F32, false},
    {4099, DTYPE_F32, DTYPE_BF16, false},  {4096, DTYPE_BF16, DTYPE_F32, false},
    {8192, DTYPE_F16, DTYPE_F16, false},   {77 * 72, DTYPE_F32, DTYPE_F32, true},
    {5001, DTYPE_BF16, DTYPE_BF16, true},  {1025, DTYPE_BF16, DTYPE_F32, true},
};
#define EACH_SHAPE(s) (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)

/* Values near zero, where most are, and large ones, where tanh is 1 and exponentials overflow. */
static struct tensor make_input(struct check *c, const struct shape *s) {
    struct tensor narrow = check_normal(c, DTYPE_F32, s->count, 0, 2.0);
    double *values = check_read(c, &narrow);
    for (int64_t i = 0; i < s->count; i += 7) values[i] *= i % 2 ? 10 : 1000;
    return check_tensor(c, CHECK_READ, s->in, s->count, 0, values);
}

static void forward(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensor in = make_input(c, s), out = check_output(c, s->out, s->count, 0);
    struct amax *amax = check_amax(c, 0, false);
    CHECK_OP(c, gelu_forward, .out = &out, .in = &in, .track_amax = amax, .relu2 = s->relu2);
    if (!c->verify) return;
    check_amax_covers(c, amax, 0, false, &out);
    double *x = check_read(c, &in), *expected = check_doubles(c, s->count);
    for (int64_t i = 0; i < s->count; i++)
        expected[i] = s->relu2 ? fmax(x[i], 0) * fmax(x[i], 0) : reference_gelu(x[i]);
    check_close(c, "gelu_forward", &out, expected, x);
}

Test(gelu, forward) {
    for
        EACH_SHAPE(s) check_everywhere(forward, &shapes[s]);
}

static void backward_of(struct check *c, const struct shape *s, bool in_place) {
    struct tensor in = make_input(c, s);
    struct tensor dout =
        in_place ? check_sum(c, s->out, s->count, 0) : check_normal(c, s->in, s->count, 0, 1.0);
    struct tensor din = in_place ? dout : check_output(c, s->out, s->count, 0);
    double *d = check_read(c, &dout);
    struct amax *amax = in_place ? NULL : check_amax(c, 0, false);
    CHECK_OP(c, gelu_backward, .din = &din, .dout = &dout, .in = &in, .track_amax = amax,
             .relu2 = s->relu2);
    if (!c->verify) return;
    if (amax) check_amax_covers(c, amax, 0, false, &din);
    double *x = check_read(c, &in), *size = check_doubles(c, s->count);
    for (int64_t i = 0; i < s->count; i++) {
        size[i] = fabs(d[i]) * (s->relu2 ? 2 * fabs(x[i]) : reference_gelu_sensitivity(x[i]));
        d[i] *= s->relu2 ? 2 * fmax(x[i], 0) : reference_gelu_derivative(x[i]);
    }
    check_close(c, "gelu_backward", &din, d, size);
}

static void backward(struct check *c, const void *given) {
    backward_of(c, given, false);
}
static void backward_in_place(struct check *c, const void *given) {
    backward_of(c, given, true);
}

Test(gelu, backward) {
    for
        EACH_SHAPE(s) check_everywhere(backward, &shapes[s]);
    for
        EACH_SHAPE(s) check_everywhere(backward_in_place, &shapes[s]);
}

/* Forms with column sums: in place and packed, which is a single pass, and the others. */
struct matrix {
    int64_t rows, columns;
    enum dtype out, in;
    enum { IN_PLACE, ELSEWHERE } where;
    bool relu2;
};

static void backward_sums(struct check *c, const void *given) {
    const struct matrix *s = given;
    struct tensor in = check_normal(c, s->in, s->rows, s->columns, 2.0);
    struct tensor din = s->where == IN_PLACE ? check_sum(c, s->out, s->rows, s->columns)
                                             : check_output(c, s->out, s->rows, s->columns);
    struct tensor dout =
        s->where == IN_PLACE ? din : check_normal(c, s->out, s->rows, s->columns, 1.0);
    struct tensor sums = check_sum(c, DTYPE_F32, s->columns, 0);
    double *d = check_read(c, &dout), *before = check_read(c, &sums);
    struct amax *amax = s->rows % 2 ? check_amax(c, 0, false) : NULL;
    CHECK_OP(c, gelu_backward, .din = &din, .dout = &dout, .in = &in, .track_amax = amax,
             .column_sums = &sums, .relu2 = s->relu2);
    if (!c->verify) return;
    if (amax) check_amax_covers(c, amax, 0, false, &din);
    double *x = check_read(c, &in), *size = check_doubles(c, s->rows * s->columns);
    for (int64_t i = 0; i < s->rows * s->columns; i++) {
        size[i] = fabs(d[i]) * (s->relu2 ? 2 * fabs(x[i]) : reference_gelu_sensitivity(x[i]));
        d[i] *= s->relu2 ? 2 * fmax(x[i], 0) : reference_gelu_derivative(x[i]);
    }
    check_close(c, "gelu_backward", &din, d, size);
    check_column_sums(c, &sums, before, &din);
}

Test(gelu, backward_with_column_sums) {
    static const struct matrix given[] = {{77, 72, DTYPE_BF16, DTYPE_BF16, IN_PLACE, false},
                                          {300, 264, DTYPE_BF16, DTYPE_BF16, IN_PLACE, false},
                                          {64, 256, DTYPE_F32, DTYPE_F32, IN_PLACE, false},
                                          {65, 8, DTYPE_F16, DTYPE_F32, IN_PLACE, false},
                                          {33, 37, DTYPE_BF16, DTYPE_BF16, IN_PLACE, false},
                                          {40, 48, DTYPE_F32, DTYPE_BF16, ELSEWHERE, false},
                                          {1, 520, DTYPE_F32, DTYPE_BF16, IN_PLACE, false},
                                          {77, 72, DTYPE_BF16, DTYPE_BF16, IN_PLACE, true}};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        check_everywhere(backward_sums, &given[i]);
}

/* Three dtypes at once, and arrays that start at odd offsets: no unaligned pieces may be read or
 * written. */
static void odd_places(struct check *c, const void *given) {
    const enum dtype *dtype = given;
    enum { COUNT = 4500 };
    struct tensor all[4] = {
        check_normal(c, dtype[0], COUNT + 1, 0, 2.0), check_normal(c, dtype[1], COUNT + 3, 0, 1.0),
        check_output(c, dtype[1], COUNT + 1, 0), check_output(c, dtype[2], COUNT + 5, 0)};
    struct tensor in = tensor_range(&all[0], 1, COUNT), dout = tensor_range(&all[1], 3, COUNT);
    struct tensor out = tensor_range(&all[2], 1, COUNT), din = tensor_range(&all[3], 5, COUNT);
    CHECK_OP(c, gelu_forward, .out = &out, .in = &in);
    CHECK_OP(c, gelu_backward, .din = &din, .dout = &dout, .in = &in);
    if (!c->verify) return;
    double *x = check_read(c, &in), *d = check_read(c, &dout), *size = check_doubles(c, COUNT);
    double *expected = check_doubles(c, COUNT);
    for (int i = 0; i < COUNT; i++) {
        expected[i] = reference_gelu(x[i]);
        size[i] = fabs(d[i]) * reference_gelu_sensitivity(x[i]);
        d[i] *= reference_gelu_derivative(x[i]);
    }
    check_close(c, "gelu_forward", &out, expected, x);
    check_close(c, "gelu_backward", &din, d, size);
    cr_assert(isnan(check_read(c, &all[2])[0]) && isnan(check_read(c, &all[3])[4]),
              "wrote before the start");
}

Test(gelu, misaligned_and_mixed_dtypes) {
    check_everywhere(odd_places, (const enum dtype[]){DTYPE_F32, DTYPE_F16, DTYPE_BF16});
    check_everywhere(odd_places, (const enum dtype[]){DTYPE_BF16, DTYPE_F32, DTYPE_F16});
    check_everywhere(odd_places, (const enum dtype[]){DTYPE_F16, DTYPE_F16, DTYPE_F16});
}

/* For large values gelu' is 0 or 1, although its factors overflow; a NaN stays NaN. */
static void far_out(struct check *c, const void *given) {
    (void)given;
    const double values[] = {-1e38, -1e20, -1e5, -90, -14, 14, 90, 1e5, 1e20, 1e38, NAN};
    enum { COUNT = sizeof values / sizeof *values };
    double ones[COUNT];
    for (int i = 0; i < COUNT; i++) ones[i] = 1;
    struct tensor in = check_tensor(c, CHECK_READ, DTYPE_F32, COUNT, 0, values);
    struct tensor dout = check_tensor(c, CHECK_READ, DTYPE_F32, COUNT, 0, ones);
    struct tensor out = check_output(c, DTYPE_F32, COUNT, 0);
    struct tensor din = check_output(c, DTYPE_F32, COUNT, 0);
    CHECK_OP(c, gelu_forward, .out = &out, .in = &in);
    CHECK_OP(c, gelu_backward, .din = &din, .dout = &dout, .in = &in);
    double *x = check_read(c, &in), *y = check_read(c, &out), *d = check_read(c, &din);
    for (int i = 0; i < COUNT - 1; i++) {
        cr_assert(fabs(y[i] - fmax(x[i], 0)) <= 1e-6 * fmax(x[i], 0), "gelu(%g) is %g", x[i], y[i]);
        if (fabs(x[i]) < 1e18) /* beyond that, 0 * inf is allowed */
            cr_assert(fabs(d[i] - (x[i] > 0)) <= 1e-6 * (x[i] > 0), "gelu'(%g) is %g", x[i], d[i]);
    }
    cr_assert(isnan(y[COUNT - 1]) && isnan(d[COUNT - 1]), "NaN became a number");
}

Test(gelu, far_out) {
    check_everywhere(far_out, NULL);
}

/* Each finite pattern of a 16-bit type: every value is covered, and no overflow makes a NaN. */
static void every_pattern(struct check *c, const void *given) {
    const enum dtype *dtype = given;
    int64_t count = *dtype == DTYPE_F16 ? 0x7c00 : 0x7f80;
    uint16_t *patterns = (uint16_t *)(void *)check_doubles(c, count);
    for (int64_t i = 0; i < 2 * count; i++)
        patterns[i] = (uint16_t)(i < count ? i : 0x8000 + i - count);
    struct tensor in = {
        check_memory(c, CHECK_READ, patterns, 4 * (size_t)count), *dtype, 1, {2 * count}};
    struct tensor out = check_output(c, *dtype, 2 * count, 0);
    CHECK_OP(c, gelu_forward, .out = &out, .in = &in);
    if (!c->verify) return;
    double *x = check_read(c, &in), *expected = check_doubles(c, 2 * count);
    for (int64_t i = 0; i < 2 * count; i++) expected[i] = reference_gelu(x[i]);
    /* The cube overflows fp32, which is correct: tanh of it is 1 or -1. */
    check_close(c, "gelu_forward", &out, expected, x);
}

Test(gelu, every_16_bit_pattern) {
    check_everywhere(every_pattern, &(const enum dtype){DTYPE_F16});
    check_everywhere(every_pattern, &(const enum dtype){DTYPE_BF16});
}

static double gelu_at(const void *x) {
    return reference_gelu(*(const double *)x);
}

static void differences(struct check *c, const void *given) {
    (void)given;
    struct tensor in = check_normal(c, DTYPE_F32, 301, 0, 2.0);
    struct tensor dout = check_normal(c, DTYPE_F32, 301, 0, 1.0);
    struct tensor din = check_output(c, DTYPE_F32, 301, 0);
    CHECK_OP(c, gelu_backward, .din = &din, .dout = &dout, .in = &in);
    if (!c->verify) return;
    double *x = check_read(c, &in), *d = check_read(c, &dout);
    for (int i = 0; i < 301; i++) d[i] *= check_derivative(gelu_at, &x[i], &x[i]);
    check_close(c, "differences", &din, d, NULL);
}

Test(gelu, finite_differences) {
    check_everywhere(differences, NULL);
}

static void golden(struct check *c, const void *given) {
    (void)given;
    struct tensor in = golden_tensor(c, CHECK_READ, "gelu.in");
    struct tensor dout = golden_tensor(c, CHECK_READ, "gelu.dout");
    struct tensor out = check_output(c, DTYPE_F32, tensor_count(&in), 0);
    struct tensor din = check_output(c, DTYPE_F32, tensor_count(&in), 0);
    CHECK_OP(c, gelu_forward, .out = &out, .in = &in);
    CHECK_OP(c, gelu_backward, .din = &din, .dout = &dout, .in = &in);
    if (!c->verify) return;
    golden_close(c, "golden_sum", &out, "gelu.out", NULL);
    golden_close(c, "golden_sum", &din, "gelu.din", NULL);
}

Test(gelu, golden) {
    check_everywhere(golden, NULL);
}
