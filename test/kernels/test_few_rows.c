/* Matmuls of few rows on the CPU, with each layout and 16-bit dtype of the weights, against the
 * exact result. Bits may depend neither on the threads nor on the rows beside a row. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/level.h"
#include "test/device.h"
#include "test/kernels/bench.h"
#include "test/kernels/stored_weight.h"

struct product {
    int64_t m, n, k;
    enum dtype a, b, out, bias;
    bool transpose_b, has_bias, accumulate;
};

static void verify(struct check *c, const struct product *p, const struct tensor *at,
                   const struct tensor *bt, const double *bias, const double *before,
                   const struct tensor *out) {
    const double *a = check_read(c, at), *b = check_read(c, bt);
    double *expected = check_doubles(c, p->m * p->n), *size = check_doubles(c, p->m * p->n);
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            double *sum = &expected[i * p->n + j], *sizes = &size[i * p->n + j];
            *sum = (bias ? bias[j] : 0) + (before ? before[i * p->n + j] : 0);
            *sizes = fabs(bias ? bias[j] : 0) + fabs(before ? before[i * p->n + j] : 0);
            for (int64_t l = 0; l < p->k; l++) {
                double term = a[i * p->k + l] * b[p->transpose_b ? j * p->k + l : l * p->n + j];
                *sum += term, *sizes += fabs(term);
            }
        }
    check_close(c, "matmul", out, expected, size);
}

static void product(struct check *c, const void *given) {
    const struct product *p = given;
    struct tensor a = check_normal(c, p->a, p->m, p->k, 1.0);
    struct tensor b =
        check_normal(c, p->b, p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n, 0.5);
    struct tensor bias = p->has_bias ? check_normal(c, p->bias, p->n, 0, 1.0) : (struct tensor){0};
    struct tensor out =
        p->accumulate ? check_sum(c, p->out, p->m, p->n) : check_output(c, p->out, p->m, p->n);
    double *before = p->accumulate ? check_read(c, &out) : NULL;
    CHECK_OP(c, matmul, .out = &out, .a = &a, .b = &b, .bias = p->has_bias ? &bias : NULL,
             .transpose_b = p->transpose_b, .accumulate = p->accumulate);
    if (c->verify) verify(c, p, &a, &b, p->has_bias ? check_read(c, &bias) : NULL, before, &out);
}

/* Sizes with whole chunks of every CPU level, with elements after them, and with these only. */
static const int64_t sizes[][2] = {{64, 96}, {67, 77}, {161, 33}, {1, 7}, {290, 160}};
static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

/* Returns one of the dtypes of b: fp16 only from v3 on. */
static enum dtype half_of(int i) {
    struct error error;
    bool has_f16c = cpu_level_choose(NULL, &error)->number >= 3;
    return has_f16c && i % 2 ? DTYPE_F16 : DTYPE_BF16;
}

Test(few_rows, every_dtype_and_layout) {
    if (test_device() != DEVICE_CPU) cr_skip_test("products of few rows are the CPU's");
    for (int64_t m = 1; m <= FEW_ROWS; m++)
        for (int i = 0; i < 5 * 6 * 2; i++) {
            struct product p = {.m = m,
                                .n = sizes[i % 5][0],
                                .k = sizes[i % 5][1],
                                .a = dtypes[i % 3],
                                .b = half_of(i / 3),
                                .out = dtypes[(i + m) % 3],
                                .bias = m % 2 ? DTYPE_F32 : half_of(i / 3),
                                .transpose_b = i < 20,
                                .has_bias = (i + m) % 4 == 1,
                                .accumulate = (i + m) % 4 == 2};
            check_everywhere(product, &p);
        }
}

static void rows(struct check *c, const void *given) {
    const struct product *p = given;
    struct tensor a = check_normal(c, p->a, p->m, p->k, 1.0);
    struct tensor b =
        check_normal(c, p->b, p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n, 0.5);
    struct tensor all = check_output(c, p->out, p->m, p->n), one = check_output(c, p->out, 1, p->n);
    CHECK_OP(c, matmul, .out = &all, .a = &a, .b = &b, .transpose_b = p->transpose_b);
    for (int64_t row = 0; row < p->m; row++) {
        struct tensor in = tensor_slice(&a, row, 1), together = tensor_slice(&all, row, 1);
        CHECK_OP(c, matmul, .out = &one, .a = &in, .b = &b, .transpose_b = p->transpose_b);
        if (c->verify) check_equal(c, "few rows", &one, check_read(c, &together));
    }
}

Test(few_rows, a_row_has_the_same_bits_alone) {
    if (test_device() != DEVICE_CPU) cr_skip_test("products of few rows are the CPU's");
    for (int64_t m = 2; m <= FEW_ROWS; m++)
        for (int i = 0; i < 4; i++) {
            struct product p = {.m = m,
                                .n = 75,
                                .k = 300,
                                .a = DTYPE_F32,
                                .b = half_of(i),
                                .out = DTYPE_F32,
                                .transpose_b = i < 2};
            check_everywhere(rows, &p);
        }
}

/* Weights that are read as they are stored give the bits of dequantized ones. */
struct stored_product {
    struct product product;
    enum weight_format format;
    int64_t rows[STORED_MAX]; /* of each matrix */
};

static void stored(struct check *c, const void *given) {
    const struct stored_product *s = given;
    const struct product *p = &s->product;
    struct quantized_weight host, weights[STORED_MAX];
    struct stored_matrices matrices = {0};
    struct tensor b = check_output(c, p->b, p->n, p->k), not_read = b;
    not_read.data = NULL;
    for (int64_t i = 0, first = 0; i < STORED_MAX && s->rows[i] > 0; first += s->rows[i++]) {
        weights[i] = random_weight(c, &host, s->format, s->rows[i], p->k);
        struct tensor part = tensor_slice(&b, first, s->rows[i]);
        CHECK_OP(c, dequantize, .out = &part, .in = &weights[i]);
        matrices.weights[matrices.count++] = &weights[i];
    }
    struct tensor a = check_normal(c, p->a, p->m, p->k, 1.0);
    struct tensor out = check_output(c, p->out, p->m, p->n), expected = out;
    CHECK_OP(c, matmul, .out = &expected, .a = &a, .b = &b, .transpose_b = true);
    double *values = check_read(c, &expected);
    out = check_output(c, p->out, p->m, p->n);
    CHECK_OP(c, matmul, .out = &out, .a = &a, .b = &not_read, .b_stored = &matrices,
             .transpose_b = true);
    if (c->verify) check_equal(c, "few rows of stored weights", &out, values);
}

/* Panels of 32 rows within a matrix and across two and three; blocks across rows. */
Test(few_rows, reads_stored_weights) {
    static const struct {
        int64_t k, rows[STORED_MAX];
    } cases[] = {{64, {96}}, {256, {40, 8, 8}}, {78, {33, 41}}, {34, {3, 5, 7}}, {1100, {70, 2}}};
    if (test_device() != DEVICE_CPU) cr_skip_test("products of few rows are the CPU's");
    for (int i = 0; i < 5; i++)
        for (int64_t m = 1; m <= FEW_ROWS; m += m < 4 ? 1 : 4)
            for (int format = WEIGHT_NF4; format <= WEIGHT_FP8_BLOCK; format++) {
                const int64_t *rows = cases[i].rows;
                struct stored_product s = {.format = (enum weight_format)format,
                                           .product = {.m = m,
                                                       .n = rows[0] + rows[1] + rows[2],
                                                       .k = cases[i].k,
                                                       .a = dtypes[(i + m) % 3],
                                                       .b = half_of(i + (int)m),
                                                       .out = DTYPE_F32}};
                memcpy(s.rows, rows, sizeof s.rows);
                check_everywhere(stored, &s);
            }
}

/* The products of a token: matrices as large as Qwen3 0.6B's head, whose weights no cache holds. */
static const char *const variants[] = {"bf16 1 row", "bf16 8 rows", "fp16 1 row", "fp16 8 rows",
                                       NULL};

static size_t time_product(struct bench *b, int variant) {
    const enum dtype dtype = variant < 2 ? DTYPE_BF16 : DTYPE_F16;
    const int64_t rows = variant % 2 ? 8 : 1, columns = bench_number("width", 1024, 1 << 20);
    struct tensor weight = bench_rows(b, dtype, columns);
    struct tensor in = arena_tensor(&b->arena, dtype, rows, columns);
    struct tensor out = arena_tensor(&b->arena, dtype, rows, b->rows);
    OP(&b->be, matmul, .out = &out, .a = &in, .b = &weight, .transpose_b = true);
    return tensor_bytes(&weight);
}
BENCH(few_rows, product, variants, time_product)
