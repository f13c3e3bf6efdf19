#include <criterion/criterion.h>
#include <math.h>

#include "test/kernels/bench.h"
#include "test/kernels/check.h"
#include "test/kernels/reference.h"

struct shape {
    int64_t rows, columns; /* shape of the result */
    enum dtype in, out;
    enum gate_function gate;
    bool apart;            /* gate and up are tensors of their own, and dup lies in dout */
    int64_t before, after; /* columns around a gate of its own */
};

static const struct shape shapes[] = {
    {1, 1, DTYPE_F32, DTYPE_F32, GATE_SILU},
    {77, 200, DTYPE_F32, DTYPE_F32, GATE_SILU},
    {26, 1536, DTYPE_BF16, DTYPE_BF16, GATE_SILU},
    {13, 201, DTYPE_F16, DTYPE_F16, GATE_SILU},
    {5, 516, DTYPE_F32, DTYPE_BF16, GATE_SILU},
    {9, 40, DTYPE_F16, DTYPE_F32, GATE_SILU},
    {1, 1, DTYPE_F32, DTYPE_F32, GATE_GELU},
    {77, 200, DTYPE_F32, DTYPE_F32, GATE_GELU},
    {26, 1536, DTYPE_BF16, DTYPE_BF16, GATE_GELU},
    {13, 201, DTYPE_F16, DTYPE_F16, GATE_GELU},
    {5, 516, DTYPE_F32, DTYPE_BF16, GATE_GELU},
    {9, 40, DTYPE_F16, DTYPE_F32, GATE_GELU},
    {1, 1, DTYPE_F32, DTYPE_F32, GATE_SIGMOID},
    {13, 201, DTYPE_F16, DTYPE_F16, GATE_SIGMOID},
    {77, 200, DTYPE_F32, DTYPE_F32, GATE_SIGMOID, true},
    {26, 1536, DTYPE_BF16, DTYPE_BF16, GATE_SIGMOID, true},
    {13, 201, DTYPE_F16, DTYPE_F16, GATE_SIGMOID, true},
    {9, 40, DTYPE_BF16, DTYPE_BF16, GATE_SILU, true},
    {26, 40, DTYPE_BF16, DTYPE_BF16, GATE_SILU, true, 16, 8},
    {13, 40, DTYPE_F32, DTYPE_F32, GATE_SILU, true, 3, 5},
};
#define EACH_SHAPE(s) (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)

static double logistic(double x) {
    return 1 / (1 + exp(-x));
}

/* The gate function at x and its derivative, and the sizes of their terms. The relative error of an
 * exponential is the absolute error of its argument: hence 1 + |x| for silu. */
struct gate {
    double value, slope, value_size, slope_size;
};

static struct gate gate_at(enum gate_function function, double x) {
    if (function == GATE_GELU)
        return (struct gate){reference_gelu(x), reference_gelu_derivative(x), fabs(x),
                             reference_gelu_sensitivity(x)};
    const double p = logistic(x), bell = p * (1 - p);
    if (function == GATE_SIGMOID) /* 1 - p cancels */
        return (struct gate){p, bell, p * (1 + fabs(x)), p + bell * (1 + fabs(x))};
    return (struct gate){x * p, p + x * bell, fabs(x * p) * (1 + fabs(x)),
                         (p + fabs(x) * bell + fabs(x) * 0x1p-24) * (1 + fabs(x))};
}

/* Columns of a gate of its own, and the offset of the gate of element i of the result. */
static int64_t wide_of(const struct shape *s) {
    return s->before + s->columns + s->after;
}
static int64_t gate_offset(const struct shape *s, int64_t i) {
    return i / s->columns * wide_of(s) + s->before + i % s->columns;
}

static const char *kind_of(const struct shape *s) {
    return s->gate == GATE_GELU ? "gated_gelu" : "gated";
}

/* Values near zero, where most are, and large ones, where exponentials overflow. */
static struct tensor make_input(struct check *c, const struct shape *s) {
    int64_t count = s->rows * 2 * s->columns;
    struct tensor narrow = check_normal(c, DTYPE_F32, s->rows, 2 * s->columns, 2.0);
    double *values = check_read(c, &narrow);
    for (int64_t i = 0; i < count; i += 7) values[i] *= i % 2 ? 10 : 100;
    return check_tensor(c, CHECK_READ, s->in, s->rows, 2 * s->columns, values);
}

/* Returns gate or up, of rows gate | up, as a tensor of its own. Columns around a gate are 0. */
static struct tensor half_of(struct check *c, const struct shape *s, enum check_use use,
                             const struct tensor *both, bool up) {
    const double *values = check_read(c, both);
    const int64_t wide = up ? s->columns : wide_of(s);
    double *half = check_doubles(c, s->rows * wide);
    for (int64_t i = 0; i < s->rows * s->columns; i++)
        half[up ? i : gate_offset(s, i)] =
            values[(2 * (i / s->columns) + up) * s->columns + i % s->columns];
    return check_tensor(c, use, s->in, s->rows, wide, half);
}

static void forward(struct check *c, const void *given) {
    const struct shape *s = given;
    struct tensor in = make_input(c, s), out = check_output(c, s->out, s->rows, s->columns);
    struct tensor gates = in, ups = in;
    struct amax *amax = check_amax(c, 0, false);
    if (s->apart) gates = half_of(c, s, CHECK_READ, &in, false);
    if (s->apart) ups = half_of(c, s, CHECK_READ, &in, true);
    CHECK_OP(c, gated_forward, .out = &out, .gate_up = &gates, .up = s->apart ? &ups : NULL,
             .gate_column = s->before, .gate = s->gate, .track_amax = amax);
    if (!c->verify) return;
    check_amax_covers(c, amax, 0, false, &out);
    int64_t count = s->rows * s->columns;
    double *x = check_read(c, &in), *expected = check_doubles(c, count);
    double *size = check_doubles(c, count);
    for (int64_t i = 0; i < count; i++) {
        const double *gate = x + i / s->columns * 2 * s->columns + i % s->columns;
        const struct gate g = gate_at(s->gate, *gate);
        expected[i] = g.value * gate[s->columns];
        size[i] = g.value_size * fabs(gate[s->columns]);
    }
    check_close(c, kind_of(s), &out, expected, size);
}

Test(gated, forward) {
    for
        EACH_SHAPE(s) check_everywhere(forward, &shapes[s]);
}

static void backward_of(struct check *c, const struct shape *s, bool in_place) {
    int64_t rows = s->rows, columns = s->columns;
    struct tensor in = in_place ? check_sum(c, s->in, rows, 2 * columns) : make_input(c, s);
    struct tensor dout = check_normal(c, s->out, rows, columns, 1.0);
    struct tensor din = in_place ? in : check_output(c, s->in, rows, 2 * columns);
    double *x = check_read(c, &in), *d = check_read(c, &dout);
    struct amax *amax = in_place ? NULL : check_amax(c, 0, false);
    CHECK_OP(c, gated_backward, .dgate_up = &din, .dout = &dout, .gate_up = &in, .gate = s->gate,
             .track_amax = amax);
    if (!c->verify) return;
    if (amax) check_amax_covers(c, amax, 0, false, &din);
    double *expected = check_doubles(c, 2 * rows * columns);
    double *size = check_doubles(c, 2 * rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t at = i / columns * 2 * columns + i % columns;
        const struct gate g = gate_at(s->gate, x[at]);
        expected[at] = d[i] * x[at + columns] * g.slope;
        expected[at + columns] = d[i] * g.value;
        size[at] = fabs(d[i] * x[at + columns]) * g.slope_size;
        size[at + columns] = fabs(d[i]) * g.value_size;
    }
    check_close(c, kind_of(s), &din, expected, size);
}

/* The gradient of gate may lie in gate, and that of up in dout. Columns around it stay. */
static void backward_apart(struct check *c, const struct shape *s, bool in_place) {
    const int64_t rows = s->rows, columns = s->columns, count = rows * columns;
    const enum check_use use = in_place ? CHECK_WRITE : CHECK_READ;
    struct tensor in = make_input(c, s), up = half_of(c, s, CHECK_READ, &in, true);
    struct tensor gate = half_of(c, s, use, &in, false);
    struct tensor random = check_normal(c, s->out, rows, columns, 1.0);
    double *x = check_read(c, &gate), *ups = check_read(c, &up), *d = check_read(c, &random);
    struct tensor dout = check_tensor(c, use, s->out, rows, columns, d);
    struct tensor dgate = in_place ? gate : check_sum(c, s->in, rows, wide_of(s));
    struct tensor dup = in_place ? dout : check_output(c, s->in, rows, columns);
    struct amax *amax = wide_of(s) > columns ? NULL : check_amax(c, 0, false);
    double *dgates = check_read(c, &dgate);
    CHECK_OP(c, gated_backward, .dgate_up = &dgate, .dup = &dup, .dout = &dout, .gate_up = &gate,
             .up = &up, .gate_column = s->before, .gate = s->gate, .track_amax = amax);
    if (!c->verify) return;
    double *dups = check_doubles(c, count), *up_sizes = check_doubles(c, count);
    double *gate_sizes = check_doubles(c, rows * wide_of(s));
    double largest = 0, *stored = check_read(c, &dup);
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(stored[i]));
    if (amax) check_amax_covers(c, amax, (float)largest, false, &dgate);
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = gate_offset(s, i);
        const struct gate g = gate_at(s->gate, x[at]);
        dgates[at] = d[i] * ups[i] * g.slope, gate_sizes[at] = fabs(d[i] * ups[i]) * g.slope_size;
        dups[i] = d[i] * g.value, up_sizes[i] = fabs(d[i]) * g.value_size;
    }
    check_close(c, kind_of(s), &dgate, dgates, gate_sizes);
    check_close(c, kind_of(s), &dup, dups, up_sizes);
}

static void backward(struct check *c, const void *given) {
    const struct shape *s = given;
    (s->apart ? backward_apart : backward_of)(c, s, false);
}
static void backward_in_place(struct check *c, const void *given) {
    const struct shape *s = given;
    (s->apart ? backward_apart : backward_of)(c, s, true);
}

Test(gated, backward) {
    for
        EACH_SHAPE(s) check_everywhere(backward, &shapes[s]);
    for
        EACH_SHAPE(s) check_everywhere(backward_in_place, &shapes[s]);
}

/* Arrays that start at odd offsets: no unaligned pieces may be read or written. */
static void odd_places(struct check *c, const void *given) {
    const int odd = *(const int *)given;
    enum { ROWS = 5, COLUMNS = 48 };
    struct tensor in = odd == 0 ? check_misaligned(c, CHECK_READ, DTYPE_BF16, ROWS, 2 * COLUMNS)
                                : check_normal(c, DTYPE_BF16, ROWS, 2 * COLUMNS, 1.0);
    struct tensor out = odd == 1 ? check_misaligned(c, CHECK_WRITE, DTYPE_BF16, ROWS, COLUMNS)
                                 : check_output(c, DTYPE_BF16, ROWS, COLUMNS);
    struct tensor din = odd == 2 ? check_misaligned(c, CHECK_WRITE, DTYPE_BF16, ROWS, 2 * COLUMNS)
                                 : check_output(c, DTYPE_BF16, ROWS, 2 * COLUMNS);
    struct tensor dout = odd == 3 ? check_misaligned(c, CHECK_READ, DTYPE_BF16, ROWS, COLUMNS)
                                  : check_normal(c, DTYPE_BF16, ROWS, COLUMNS, 1.0);
    CHECK_OP(c, gated_forward, .out = &out, .gate_up = &in);
    CHECK_OP(c, gated_backward, .dgate_up = &din, .dout = &dout, .gate_up = &in);
    if (!c->verify) return;
    double *x = check_read(c, &in), *d = check_read(c, &dout);
    double *expected = check_doubles(c, ROWS * COLUMNS), *dup = check_read(c, &din);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        int at = i / COLUMNS * 2 * COLUMNS + i % COLUMNS;
        expected[i] = x[at] * logistic(x[at]) * x[at + COLUMNS];
        dup[at + COLUMNS] = d[i] * x[at] * logistic(x[at]);
    }
    check_close(c, "gated", &out, expected, NULL);
    check_close(c, "gated", &din, dup, NULL);
}

Test(gated, odd_places) {
    for (int odd = 0; odd < 4; odd++) check_everywhere(odd_places, &odd);
}

/* dout * silu(gate) * up. */
static double objective(const void *state) {
    const double *p = state;
    return p[2] * p[0] * logistic(p[0]) * p[1];
}

static void differences(struct check *c, const void *given) {
    (void)given;
    double p[3] = {-1.25, 0.75, 1.5};
    struct tensor in = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 2, p);
    struct tensor dout = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 1, p + 2);
    struct tensor din = check_output(c, DTYPE_F32, 1, 2);
    CHECK_OP(c, gated_backward, .dgate_up = &din, .dout = &dout, .gate_up = &in);
    if (!c->verify) return;
    double expected[2];
    for (int i = 0; i < 2; i++) expected[i] = check_derivative(objective, p, &p[i]);
    check_close(c, "differences", &din, expected, NULL);
}

Test(gated, finite_differences) {
    check_everywhere(differences, NULL);
}

static size_t time_forward(struct bench *b, int variant) {
    struct tensor gate_up = bench_rows(b, (enum dtype)variant, 2 * BENCH_HIDDEN);
    struct tensor out = bench_rows(b, (enum dtype)variant, BENCH_HIDDEN);
    OP(&b->be, gated_forward, .out = &out, .gate_up = &gate_up);
    return tensor_bytes(&gate_up) + tensor_bytes(&out);
}
BENCH(gated, forward, bench_dtypes, time_forward)

static size_t time_backward(struct bench *b, int variant) {
    struct tensor gate_up = bench_rows(b, (enum dtype)variant, 2 * BENCH_HIDDEN);
    struct tensor dgate_up = bench_rows(b, (enum dtype)variant, 2 * BENCH_HIDDEN);
    struct tensor dout = bench_rows(b, (enum dtype)variant, BENCH_HIDDEN);
    OP(&b->be, gated_backward, .dgate_up = &dgate_up, .dout = &dout, .gate_up = &gate_up);
    return tensor_bytes(&gate_up) + tensor_bytes(&dgate_up) + tensor_bytes(&dout);
}
BENCH(gated, backward, bench_dtypes, time_backward)
