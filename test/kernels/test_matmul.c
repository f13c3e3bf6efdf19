#include <criterion/criterion.h>
#include <math.h>

#include "test/device.h"
#include "test/kernels/golden.h"
#include "test/kernels/reference.h"
#ifdef EMULATED
#include "test/cuda_emulator/fake_cublaslt.h"
#endif

struct size {
    int64_t m, n, k;
};

/* a, b, out */
struct types {
    enum dtype a, b, out;
};

enum epilogue {
    PLAIN,
    BIAS,
    BIAS_F32,
    ACCUMULATE,
    GELU,
    DGELU,
    DGELU_SUMS /* and the column sums of out */
};

struct product {
    struct size size;
    struct types types;
    bool transpose_a, transpose_b;
    enum epilogue epilogue;
};

struct operands {
    struct tensor a, b, out, bias, pre_activation, sums;
    double *out_before, *sums_before;
};

static bool has_bias(const struct product *p) {
    return p->epilogue == BIAS || p->epilogue == BIAS_F32 || p->epilogue == GELU;
}

static bool accumulates(const struct product *p) {
    return p->epilogue == ACCUMULATE;
}

static void make(struct check *c, const struct product *p, struct operands *o) {
    int64_t m = p->size.m, n = p->size.n, k = p->size.k;
    *o = (struct operands){0};
    o->a = check_normal(c, p->types.a, p->transpose_a ? k : m, p->transpose_a ? m : k, 1.0);
    o->b = check_normal(c, p->types.b, p->transpose_b ? n : k, p->transpose_b ? k : n, 0.5);
    o->out =
        accumulates(p) ? check_sum(c, p->types.out, m, n) : check_output(c, p->types.out, m, n);
    if (accumulates(p)) o->out_before = check_read(c, &o->out);
    enum dtype bias = p->epilogue == BIAS_F32 ? DTYPE_F32 : p->types.b;
    if (has_bias(p)) o->bias = check_normal(c, bias, n, 0, 1.0);
    if (p->epilogue == GELU) o->pre_activation = check_output(c, p->types.out, m, n);
    if (p->epilogue >= DGELU) o->pre_activation = check_normal(c, p->types.out, m, n, 1.5);
    if (p->epilogue != DGELU_SUMS) return;
    o->sums = check_sum(c, DTYPE_F32, n, 0);
    o->sums_before = check_read(c, &o->sums);
}

static enum matmul_epilogue epilogue_of(const struct product *p) {
    return p->epilogue == GELU ? MATMUL_GELU : p->epilogue >= DGELU ? MATMUL_DGELU : MATMUL_STORE;
}

static const struct tensor *given_only(const struct tensor *tensor) {
    return tensor->data ? tensor : NULL;
}

static void run(struct check *c, const struct product *p, struct operands *o) {
    CHECK_OP(c, matmul, .out = &o->out, .a = &o->a, .b = &o->b, .bias = given_only(&o->bias),
             .epilogue = epilogue_of(p), .pre_activation = given_only(&o->pre_activation),
             .column_sums = given_only(&o->sums), .transpose_a = p->transpose_a,
             .transpose_b = p->transpose_b, .accumulate = accumulates(p));
}

/* out += A B, size += |A| |B|; both operands are first copied into the order of the inner loop. */
static void multiply(struct check *c, const struct product *p, const struct operands *o,
                     double *out, double *size) {
    int64_t m = p->size.m, n = p->size.n, k = p->size.k;
    const double *a = check_read(c, &o->a), *b = check_read(c, &o->b);
    double *rows = check_doubles(c, k * n);
    for (int64_t l = 0; l < k; l++)
        for (int64_t j = 0; j < n; j++)
            rows[l * n + j] = p->transpose_b ? b[j * k + l] : b[l * n + j];
    for (int64_t i = 0; i < m; i++) {
        for (int64_t l = 0; l < k; l++) {
            double x = p->transpose_a ? a[l * m + i] : a[i * k + l];
            for (int64_t j = 0; j < n; j++) {
                out[i * n + j] += x * rows[l * n + j];
                size[i * n + j] += fabs(x * rows[l * n + j]);
            }
        }
    }
}

/* On the CPU gelu is applied to the stored pre_activation; on a GPU it may be applied to the
 * unrounded sum. */
static void verify_gelu(struct check *c, const struct operands *o, const double *expected,
                        const double *size) {
    check_close(c, "matmul", &o->pre_activation, expected, size);
    double *x = check_read(c, &o->pre_activation), *out = check_doubles(c, tensor_count(&o->out));
    for (int64_t i = 0; i < tensor_count(&o->out); i++) out[i] = reference_gelu(x[i]);
    const char *kind = c->be.device.kind != BACKEND_CPU ? "matmul_gelu" : "gelu_forward";
    check_close(c, kind, &o->out, out, x);
}

static void verify(struct check *c, const struct product *p, const struct operands *o) {
    int64_t n = p->size.n, count = p->size.m * n;
    double *expected = check_doubles(c, count), *size = check_doubles(c, count);
    double *bias = has_bias(p) ? check_read(c, &o->bias) : NULL;
    double early = 0;
    if (p->epilogue == ACCUMULATE || p->epilogue == GELU)
        early = check_early_rounding(c, "matmul", p->types.out);
    multiply(c, p, o, expected, size);
    for (int64_t i = 0; i < count; i++) {
        double added = bias ? bias[i % n] : o->out_before ? o->out_before[i] : 0;
        size[i] += fabs(added) + early * fabs(expected[i]);
        expected[i] += added;
    }
    if (p->epilogue == GELU) {
        verify_gelu(c, o, expected, size);
        return;
    }
    if (o->sums.data) check_column_sums(c, &o->sums, o->sums_before, &o->out);
    double *x = o->pre_activation.data ? check_read(c, &o->pre_activation) : NULL;
    for (int64_t i = 0; x && i < count; i++) {
        expected[i] *= reference_gelu_derivative(x[i]);
        size[i] *= reference_gelu_sensitivity(x[i]);
    }
    bool long_sum = p->size.k > 512 && p->types.a != DTYPE_F32 && test_tensor_cores();
    const char *plain = long_sum ? "matmul_long" : "matmul";
    const char *dgelu = test_tensor_cores() ? "matmul_dgelu_approx" : "matmul_dgelu";
    check_close(c, x ? dgelu : plain, &o->out, expected, size);
}

static void body(struct check *c, const void *given) {
    const struct product *p = given;
    struct operands o;
    make(c, p, &o);
    run(c, p, &o);
    if (c->verify) verify(c, p, &o);
}

static const struct types all_types[] = {
    {DTYPE_F32, DTYPE_F32, DTYPE_F32},   {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16},
    {DTYPE_BF16, DTYPE_BF16, DTYPE_F32}, {DTYPE_F16, DTYPE_F16, DTYPE_F16},
    {DTYPE_F16, DTYPE_F16, DTYPE_F32},   {DTYPE_F32, DTYPE_BF16, DTYPE_F32},
    {DTYPE_BF16, DTYPE_F32, DTYPE_BF16}, {DTYPE_F32, DTYPE_F16, DTYPE_F16},
    {DTYPE_F16, DTYPE_BF16, DTYPE_F32},  {DTYPE_F32, DTYPE_F32, DTYPE_BF16},
};
enum { TYPES = sizeof all_types / sizeof *all_types };

static void each_product(struct size size, enum epilogue epilogue, int transposes) {
    for (int t = 0; t < TYPES; t++) {
        for (int transpose = 0; transpose < transposes; transpose++) {
            struct product p = {size, all_types[t], transpose & 1, transpose & 2, epilogue};
            check_products(body, &p);
        }
    }
}

Test(matmul, transposes) {
    each_product((struct size){33, 50, 72}, PLAIN, 4);
}
Test(matmul, tiny) {
    each_product((struct size){1, 1, 1}, PLAIN, 1);
    each_product((struct size){5, 7, 3}, PLAIN, 4);
}
Test(matmul, multiples_of_tiles) {
    each_product((struct size){64, 64, 128}, PLAIN, 4);
}
Test(matmul, one_row_or_column) {
    each_product((struct size){1, 72, 40}, BIAS, 1);
    each_product((struct size){77, 1, 40}, BIAS, 1);
    each_product((struct size){5, 300, 20}, BIAS, 1);
}
Test(matmul, bias) {
    each_product((struct size){77, 72, 40}, BIAS, 4);
    each_product((struct size){26, 37, 40}, BIAS_F32, 2);
}
Test(matmul, accumulate) {
    each_product((struct size){40, 72, 77}, ACCUMULATE, 4);
    each_product((struct size){5, 7, 3}, ACCUMULATE, 1);
}
/* Rows of a multiple of 8 values can be packed, others cannot. */
Test(matmul, gelu_epilogue) {
    each_product((struct size){26, 37, 40}, GELU, 1);
    each_product((struct size){26, 40, 37}, GELU, 4);
}
Test(matmul, gelu_derivative_epilogue) {
    each_product((struct size){26, 37, 40}, DGELU, 4);
    each_product((struct size){26, 40, 37}, DGELU, 4);
}
Test(matmul, bias_gradient) {
    each_product((struct size){77, 72, 40}, DGELU_SUMS, 2);
    each_product((struct size){26, 37, 30}, DGELU_SUMS, 2);
    each_product((struct size){300, 264, 24}, DGELU_SUMS, 4);
}
Test(matmul, long_sums) {
    each_product((struct size){3, 5, 20000}, PLAIN, 1);
    each_product((struct size){12, 24, 2000}, BIAS, 1);
}

Test(matmul, padded_vocabulary) {
    struct product p = {{3, 50304, 40}, {DTYPE_F32, DTYPE_F32, DTYPE_F32}, false, true, PLAIN};
    check_products(body, &p);
    p.types = (struct types){DTYPE_BF16, DTYPE_BF16, DTYPE_BF16};
    check_products(body, &p);
}

/* Widened operands are copied in panels if their copies would be large: panels of rows, of
 * columns, and of the sums, each with transposed operands. */
Test(matmul, panels_of_widened_operands) {
    enum { LONG = 50021, SHORT = 19, OTHER = 26 }; /* two panels each */
    static const struct types half = {DTYPE_F16, DTYPE_F16, DTYPE_F16};
    static const struct types unlike = {DTYPE_F32, DTYPE_F16, DTYPE_F32};
    const struct product products[] = {
        {{LONG, SHORT, OTHER}, half, true, true, ACCUMULATE},
        {{SHORT, LONG, OTHER}, half, false, false, BIAS},
        {{SHORT, OTHER, LONG}, half, false, true, GELU},
        {{SHORT, OTHER, LONG}, unlike, true, false, ACCUMULATE},
    };
    if (test_device() != DEVICE_CPU) cr_skip_test("panels are the CPU's");
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        check_products(body, &products[i]);
}

/* Slices of matrices start wherever a row does. */
static void slices(struct check *c, const void *given) {
    const struct product *p = given;
    int64_t m = p->size.m, n = p->size.n, k = p->size.k;
    struct operands o = {0};
    struct tensor a = check_normal(c, p->types.a, m + 3, k, 1.0);
    struct tensor b = check_normal(c, p->types.b, k + 1, n, 0.5);
    struct tensor pre_activation = check_output(c, p->types.out, m + 1, n);
    struct tensor out = check_output(c, p->types.out, m + 2, n);
    o.bias = check_normal(c, p->epilogue == BIAS_F32 ? DTYPE_F32 : p->types.b, n, 0, 1.0);
    o.a = tensor_slice(&a, 3, m);
    o.b = tensor_slice(&b, 1, k);
    if (p->epilogue == GELU) o.pre_activation = tensor_slice(&pre_activation, 1, m);
    o.out = tensor_slice(&out, 1, m);
    run(c, p, &o);
    if (c->verify) verify(c, p, &o);
}

Test(matmul, slices_of_rows) {
    static const struct size sizes[] = {{3, 8, 5}, {5, 24, 7}, {6, 40, 16}, {9, 7, 11}};
    for (int i = 0; i < 4; i++)
        for (int t = 0; t < TYPES; t++) {
            if (all_types[t].a != all_types[t].b) continue;
            struct product p = {sizes[i], all_types[t], 0, 0, i < 3 ? GELU : BIAS_F32};
            check_products(slices, &p);
        }
}

/* The gradient of sum(dout * gelu(A B + bias)), for which both epilogues exist. */
struct problem {
    double a[3], b[3], bias, dout;
};

static double objective(const void *state) {
    const struct problem *p = state;
    double x = p->bias;
    for (int i = 0; i < 3; i++) x += p->a[i] * p->b[i];
    return p->dout * reference_gelu(x);
}

static void differences(struct check *c, const void *given) {
    (void)given;
    struct problem p = {{0.5, -1.25, 0.75}, {1.5, 0.25, -0.5}, 0.125, 1.5};
    struct tensor a = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 3, p.a);
    struct tensor b = check_tensor(c, CHECK_READ, DTYPE_F32, 3, 1, p.b);
    struct tensor bias = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 0, &p.bias);
    struct tensor dout = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 1, &p.dout);
    struct tensor identity = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 1, &(const double){1});
    struct tensor before = check_output(c, DTYPE_F32, 1, 1), out = check_output(c, DTYPE_F32, 1, 1);
    struct tensor dbefore = check_output(c, DTYPE_F32, 1, 1);
    struct tensor da = check_output(c, DTYPE_F32, 1, 3), db = check_output(c, DTYPE_F32, 3, 1);
    CHECK_OP(c, matmul, .out = &out, .a = &a, .b = &b, .bias = &bias, .epilogue = MATMUL_GELU,
             .pre_activation = &before);
    CHECK_OP(c, matmul, .out = &dbefore, .a = &dout, .b = &identity, .epilogue = MATMUL_DGELU,
             .pre_activation = &before);
    CHECK_OP(c, matmul, .out = &da, .a = &dbefore, .b = &b, .transpose_b = true);
    CHECK_OP(c, matmul, .out = &db, .a = &a, .b = &dbefore, .transpose_a = true);
    if (!c->verify) return;
    double expected[3];
    for (int i = 0; i < 3; i++) expected[i] = check_derivative(objective, &p, &p.a[i]);
    check_close(c, "differences", &da, expected, NULL);
    for (int i = 0; i < 3; i++) expected[i] = check_derivative(objective, &p, &p.b[i]);
    check_close(c, "differences", &db, expected, NULL);
    expected[0] = check_derivative(objective, &p, &p.bias);
    check_close(c, "differences", &dbefore, expected, NULL);
}

Test(matmul, finite_differences) {
    check_products(differences, NULL);
}

static void golden(struct check *c, const void *given) {
    (void)given;
    struct tensor a = golden_tensor(c, CHECK_READ, "linear.a");
    struct tensor b = golden_tensor(c, CHECK_READ, "linear.b");
    struct tensor bias = golden_tensor(c, CHECK_READ, "linear.bias");
    struct tensor dout = golden_tensor(c, CHECK_READ, "linear.dout");
    struct tensor before = golden_tensor(c, CHECK_READ, "linear.out");
    int64_t rows = tensor_rows(&a), in = tensor_columns(&a), out = tensor_columns(&b);
    double *identity_values = check_doubles(c, out * out);
    for (int64_t i = 0; i < out; i++) identity_values[i * out + i] = 1;
    struct tensor identity = check_tensor(c, CHECK_READ, DTYPE_F32, out, out, identity_values);
    struct tensor linear = check_output(c, DTYPE_F32, rows, out);
    struct tensor gelu = check_output(c, DTYPE_F32, rows, out);
    struct tensor dgelu = check_output(c, DTYPE_F32, rows, out);
    struct tensor da = check_output(c, DTYPE_F32, rows, in);
    struct tensor db = check_output(c, DTYPE_F32, in, out);
    struct tensor dbias = check_tensor(c, CHECK_WRITE, DTYPE_F32, out, 0, check_doubles(c, out));
    CHECK_OP(c, matmul, .out = &gelu, .a = &a, .b = &b, .bias = &bias, .epilogue = MATMUL_GELU,
             .pre_activation = &linear);
    CHECK_OP(c, matmul, .out = &da, .a = &dout, .b = &b, .transpose_b = true);
    CHECK_OP(c, matmul, .out = &db, .a = &a, .b = &dout, .transpose_a = true);
    CHECK_OP(c, matmul, .out = &dgelu, .a = &dout, .b = &identity, .epilogue = MATMUL_DGELU,
             .pre_activation = &before);
    CHECK_OP(c, column_sums, .sums = &dbias, .in = &dout);
    if (!c->verify) return;
    golden_close(c, "golden_sum", &linear, "linear.out", NULL);
    golden_close(c, "golden_sum", &gelu, "linear.gelu_out", NULL);
    golden_close(c, "golden_sum", &da, "linear.da", NULL);
    golden_close(c, "golden_sum", &db, "linear.db", NULL);
    golden_close(c, "golden_sum", &dbias, "linear.dbias", NULL);
    golden_close(c, "golden_sum", &dgelu, "linear.dgelu_in", NULL);
}

Test(matmul, golden) {
    check_products(golden, NULL);
}

#ifdef EMULATED
/* A matmul for which the library has an epilogue, and the fallbacks that are requested when it
 * is declined: the results must be correct each time. */
struct fusion {
    struct product product;
    enum fake_epilogue wanted[3]; /* each list ends with DEFAULT */
};

#define BF16 \
    { DTYPE_BF16, DTYPE_BF16, DTYPE_BF16 }
#define BF16_TO_F32 \
    { DTYPE_BF16, DTYPE_BF16, DTYPE_F32 }
#define F32 \
    { DTYPE_F32, DTYPE_F32, DTYPE_F32 }
#define F32_TO_BF16 \
    { DTYPE_F32, DTYPE_F32, DTYPE_BF16 }

static const struct fusion fusions[] = {
    {{{24, 40, 32}, BF16, 0, 0, BIAS}, {FAKE_BIAS, FAKE_DEFAULT}},
    {{{24, 37, 32}, BF16, 0, 0, BIAS}, {FAKE_BIAS, FAKE_DEFAULT}},
    {{{24, 40, 32}, F32, 0, 1, BIAS}, {FAKE_BIAS, FAKE_DEFAULT}},
    {{{24, 40, 32}, BF16_TO_F32, 0, 0, BIAS}, {FAKE_BIAS, FAKE_DEFAULT}}, /* bias widened first */
    {{{24, 40, 32}, BF16, 0, 0, BIAS_F32}, {FAKE_DEFAULT}},               /* would round the bias */
    {{{24, 40, 32}, F32_TO_BF16, 0, 0, BIAS}, {FAKE_DEFAULT}},
    {{{24, 40, 32}, BF16, 0, 0, GELU}, {FAKE_GELU_AUX_BIAS, FAKE_BIAS, FAKE_DEFAULT}},
    {{{24, 40, 32}, F32, 0, 0, GELU}, {FAKE_BIAS, FAKE_DEFAULT}},  /* its tanh may be inaccurate */
    {{{24, 37, 32}, BF16, 0, 0, GELU}, {FAKE_BIAS, FAKE_DEFAULT}}, /* rows of aux are not packed */
    {{{24, 40, 32}, BF16, 0, 1, DGELU}, {FAKE_DGELU, FAKE_DEFAULT}},
    {{{24, 37, 32}, BF16, 0, 1, DGELU}, {FAKE_DEFAULT}},
    {{{24, 40, 32}, BF16, 0, 1, DGELU_SUMS}, {FAKE_DGELU, FAKE_DEFAULT}},
};

Test(matmul, epilogues_are_used_and_can_be_declined) {
    for (size_t f = 0; f < sizeof fusions / sizeof *fusions; f++) {
        const struct fusion *fusion = &fusions[f];
        for (int i = 0; i < 3 && fusion->wanted[i]; i++) {
            if (i > 0) fake_cublaslt_refuse(fusion->wanted[i - 1]);
            check_products(body, &fusion->product);
            int got = fake_cublaslt_counts()->epilogue;
            cr_assert_eq(got, (int)fusion->wanted[i], "case %zu: epilogue %d, not %d", f, got,
                         fusion->wanted[i]);
        }
        fake_cublaslt_refuse(0);
    }
}

/* The heuristics offer an epilogue that fails when it is run: it is dropped before step 0. */
Test(matmul, epilogues_that_fail_are_left_out) {
    for (size_t f = 0; f < sizeof fusions / sizeof *fusions; f++) {
        const struct fusion *fusion = &fusions[f];
        if (fusion->wanted[0] == FAKE_DEFAULT) continue;
        fake_cublaslt_lie(fusion->wanted[0], 0);
        check_products(body, &fusion->product);
        cr_assert_eq(fake_cublaslt_counts()->epilogue, (int)fusion->wanted[1], "case %zu", f);
    }
    fake_cublaslt_lie(0, 0);
}

Test(matmul, long_sums_are_split_in_fixed_order) {
    struct product p = {{3, 5, 20000}, BF16_TO_F32, 0, 0, PLAIN};
    check_products(body, &p);
    cr_assert_eq(fake_cublaslt_counts()->algorithm, FAKE_SPLIT);
}
#endif
