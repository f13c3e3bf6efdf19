/* Matmuls of codes in blocks, on GPUs that multiply them: exact values, scaled sums. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "data/util/random.h"
#include "kernels/block_scale.h"
#include "test/device.h"
#include "test/kernels/check.h"
#include "test/kernels/reference.h"
#ifdef EMULATED
#include "test/cuda_emulator/control.h"
#include "test/cuda_emulator/fake_cublaslt.h"
#endif

/* Formats of operands whose columns are summed over. */
static const struct quantize_format
    mx = {DTYPE_E4M3, 1, 32, DTYPE_E8M0, SCALE_POWER_OF_TWO, false},
    mx_e5m2 = {DTYPE_E5M2, 1, 32, DTYPE_E8M0, SCALE_POWER_OF_TWO, false},
    mx_four = {DTYPE_E2M1, 1, 32, DTYPE_E8M0, SCALE_POWER_OF_TWO, false},
    nv = {DTYPE_E2M1, 1, 16, DTYPE_E4M3, SCALE_NEAREST, false},
    nv_square = {DTYPE_E2M1, 16, 16, DTYPE_E4M3, SCALE_NEAREST, false},
    row_128 = {DTYPE_E4M3, 1, 128, DTYPE_E8M0, SCALE_POWER_OF_TWO, false},
    square_128 = {DTYPE_E4M3, 128, 128, DTYPE_E8M0, SCALE_POWER_OF_TWO, false};

enum epilogue { PLAIN, BIAS, ACCUMULATE, DGELU };

struct product {
    int64_t m, n, k;
    const struct quantize_format *a, *b;
    enum dtype out;
    bool transpose_a, transpose_b;
    enum epilogue epilogue;
};

/* An operand: random codes and scales, and the values that they stand for. */
struct side {
    struct tensor codes, scale;
    struct matmul_blocks blocks;
    double *values;
    float tensor_scale;
};

/* Scales of a small range, so that no few terms dominate a sum and its error. */
static uint8_t random_scale(enum dtype dtype, uint64_t bits) {
    return (uint8_t)(dtype == DTYPE_E8M0 ? 126 + bits % 4 : 0x34 + bits % 12);
}

/* stored: the format of the operand as stored, rows x columns. */
static struct side side_of(struct check *c, struct quantize_format stored, int64_t rows,
                           int64_t columns) {
    struct side side = {.blocks = {quantize_format_scales(&stored, rows, columns), stored}};
    struct tensor *scales = &side.blocks.scales;
    int64_t count = rows * columns, across = tensor_columns(scales), blocks = tensor_count(scales);
    uint64_t stream = c->stream++;
    uint8_t *bytes = calloc((size_t)count + 1, 1), *factors = malloc((size_t)blocks);
    bool four = stored.element == DTYPE_E2M1;
    side.values = check_doubles(c, count);
    for (int64_t i = 0; i < blocks; i++)
        factors[i] = random_scale(stored.scale, random_bits(5, stream, (uint64_t)i));
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = random_bits(9, stream, (uint64_t)i);
        uint32_t code = four ? bits & 15
                             : (uint32_t)(bits % (stored.element == DTYPE_E4M3 ? 0x70 : 0x44)) |
                                   (bits >> 32 & 0x80);
        bytes[four ? i / 2 : i] |= (uint8_t)(four ? code << (i % 2 * 4) : code);
        int64_t block = i / columns / stored.rows * across + i % columns / stored.columns;
        side.values[i] = (double)element_value(code, stored.element) *
                         (double)block_scale_value(factors[block], stored.scale);
    }
    side.codes = (struct tensor){NULL, stored.element, 2, {rows, columns}};
    side.codes.data = check_memory(c, CHECK_READ, bytes, tensor_bytes(&side.codes));
    scales->data = check_memory(c, CHECK_READ, factors, (size_t)blocks);
    side.tensor_scale = 0.01f + 0.1f * (float)random_uniform(9, stream, 0);
    side.scale = (struct tensor){NULL, DTYPE_F32, 2, {1, 1}};
    side.scale.data = check_memory(c, CHECK_READ, &side.tensor_scale, sizeof side.tensor_scale);
    free(bytes);
    free(factors);
    return side;
}

static void verify(struct check *c, const struct product *p, const struct side *a,
                   const struct side *b, const struct tensor *out, const double *bias,
                   const double *before, const double *x) {
    double *expected = check_doubles(c, p->m * p->n), *size = check_doubles(c, p->m * p->n);
    const char *kind = p->epilogue == DGELU ? "matmul_dgelu" : "matmul_blocks";
    double truncated = tolerance_of("matmul_8_bit_truncated")->arithmetic[DTYPE_F32] /
                       tolerance_of(kind)->arithmetic[DTYPE_F32];
    bool scaled = quantize_format_has_tensor_scale(p->a);
    double scale = scaled ? (double)a->tensor_scale * (double)b->tensor_scale : 1;
    for (int64_t i = 0; i < p->m * p->n; i++) {
        int64_t row = i / p->n, column = i % p->n;
        double sum = 0, all = 0, low = 0, high = 0, largest = 0;
        for (int64_t l = 0; l < p->k; l++) {
            double left = a->values[p->transpose_a ? l * p->m + row : row * p->k + l];
            double right = b->values[p->transpose_b ? column * p->k + l : l * p->n + column];
            sum += left * right, all += fabs(left * right);
            low = fmin(low, sum), high = fmax(high, sum),
            largest = fmax(largest, fabs(left * right));
        }
        double added = bias ? bias[column] : before ? before[i] : 0;
        expected[i] = sum * scale + added;
        size[i] = all * scale + fabs(added);
        if (before) size[i] += check_early_rounding(c, kind, p->out) * fabs(sum * scale);
        if (test_tensor_cores())
            size[i] += truncated * scale * fmax(largest, high - low) * sqrt((double)p->k + 2);
        if (!x) continue;
        expected[i] *= reference_gelu_derivative(x[i]);
        size[i] *= reference_gelu_sensitivity(x[i]);
    }
    check_close(c, kind, out, expected, size);
}

static void body(struct check *c, const void *given) {
    const struct product *p = given;
    const struct quantize_format a_format =
        p->transpose_a ? quantize_format_transposed(p->a) : *p->a;
    const struct quantize_format b_format =
        p->transpose_b ? *p->b : quantize_format_transposed(p->b);
    if (!backend_multiplies_blocks(&c->be, p->a) || !backend_multiplies_blocks(&c->be, p->b))
        return;
    struct side a =
        side_of(c, a_format, p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k);
    struct side b =
        side_of(c, b_format, p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n);
    const bool sums = p->epilogue == ACCUMULATE, scaled = quantize_format_has_tensor_scale(p->a);
    struct tensor out =
        sums ? check_sum(c, p->out, p->m, p->n) : check_output(c, p->out, p->m, p->n);
    const double *before = sums ? check_read(c, &out) : NULL;
    struct tensor bias = {0}, x = {0};
    if (p->epilogue == BIAS) bias = check_normal(c, DTYPE_F32, p->n, 0, 1);
    if (p->epilogue == DGELU) x = check_normal(c, p->out, p->m, p->n, 1.5);
    CHECK_OP(c, matmul, .out = &out, .a = &a.codes, .b = &b.codes, .a_blocks = &a.blocks,
             .b_blocks = &b.blocks, .a_scales = scaled ? &a.scale : NULL,
             .b_scales = scaled ? &b.scale : NULL, .bias = bias.data ? &bias : NULL,
             .epilogue = x.data ? MATMUL_DGELU : MATMUL_STORE, .pre_activation = x.data ? &x : NULL,
             .transpose_a = p->transpose_a, .transpose_b = p->transpose_b, .accumulate = sums);
    if (c->verify)
        verify(c, p, &a, &b, &out, bias.data ? check_read(c, &bias) : NULL, before,
               x.data ? check_read(c, &x) : NULL);
}

/* Pairs of formats that a trainer multiplies. */
static const struct {
    const struct quantize_format *a, *b;
    enum dtype out;
} pairs[] = {
    {&mx, &mx, DTYPE_BF16}, {&mx_e5m2, &mx, DTYPE_F32},          {&nv, &nv_square, DTYPE_BF16},
    {&nv, &nv, DTYPE_F32},  {&row_128, &square_128, DTYPE_BF16}, {&row_128, &row_128, DTYPE_F32}};
enum { PAIRS = sizeof pairs / sizeof *pairs };

static void each_pair(int64_t m, int64_t n, int64_t k, enum epilogue epilogue) {
    for (int i = 0; i < PAIRS * 4; i++) {
        const struct product p = {
            m, n, k, pairs[i / 4].a, pairs[i / 4].b, pairs[i / 4].out, i & 1, i & 2, epilogue};
        check_products(body, &p);
    }
}

Test(matmul_blocks, shapes) {
    each_pair(64, 160, 128, PLAIN);
    each_pair(160, 288, 256, PLAIN);
}

Test(matmul_blocks, of_odd_sizes) {
    each_pair(33, 50, 72, PLAIN);
    each_pair(64, 48, 144, BIAS);
    each_pair(32, 72, 128, ACCUMULATE);
}

Test(matmul_blocks, epilogues) {
    each_pair(32, 96, 128, BIAS);
    each_pair(96, 64, 256, ACCUMULATE);
    each_pair(32, 64, 128, DGELU);
}

#ifdef EMULATED
/* Modes of the library's operands: its A is our b. */
static void check_modes(int sm, const int modes[PAIRS][2]) {
    cuda_emulator_capability(sm);
    for (int i = 0; i < PAIRS * 4; i++) {
        const struct product p = {160,
                                  96,
                                  256,
                                  pairs[i / 4].a,
                                  pairs[i / 4].b,
                                  pairs[i / 4].out,
                                  i & 1,
                                  i & 2,
                                  i % 3 == 0 ? ACCUMULATE : PLAIN};
        long products = fake_cublaslt_counts()->products;
        check_products(body, &p);
        const struct fake_cublaslt *got = fake_cublaslt_counts();
        if (modes[i / 4][0] < 0) {
            cr_assert_eq(got->products, products, "sm_%d multiplies pair %d", sm, i / 4);
            continue;
        }
        cr_assert_gt(got->products, products);
        cr_assert_eq(got->b_mode, modes[i / 4][0], "sm_%d, pair %d", sm, i / 4);
        cr_assert_eq(got->a_mode, modes[i / 4][1], "sm_%d, pair %d", sm, i / 4);
    }
}

Test(matmul_blocks, in_the_modes_of_a_gpu) {
    static const int none[PAIRS][2] = {{-1}, {-1}, {-1}, {-1}, {-1}, {-1}};
    static const int hopper[PAIRS][2] = {
        {-1}, {-1}, {-1}, {-1}, {FAKE_VEC128, FAKE_BLK128}, {FAKE_VEC128, FAKE_VEC128}};
    static const int blackwell[PAIRS][2] = {{FAKE_VEC32, FAKE_VEC32}, {FAKE_VEC32, FAKE_VEC32},
                                            {FAKE_VEC16, FAKE_VEC16}, {FAKE_VEC16, FAKE_VEC16},
                                            {FAKE_VEC32, FAKE_VEC32}, {FAKE_VEC32, FAKE_VEC32}};
    check_modes(89, none);
    check_modes(90, hopper);
    check_modes(100, blackwell);
    check_modes(120, blackwell);
}

/* A block that K does not fill is not documented: its values are multiplied. */
Test(matmul_blocks, that_are_whole_go_to_the_library) {
    struct product p = {64, 48, 128, &mx, &mx, DTYPE_BF16, false, true, PLAIN};
    cuda_emulator_capability(100);
    check_products(body, &p);
    cr_expect_eq(fake_cublaslt_counts()->b_mode, FAKE_VEC32);
    p.k = 144;
    check_products(body, &p);
    cr_expect_eq(fake_cublaslt_counts()->b_mode, FAKE_SCALAR);
    cr_expect_eq(fake_cublaslt_counts()->b_type, FAKE_BF16);
}

Test(matmul_blocks, odd_sizes_on_each_gpu) {
    static const int gpus[] = {90, 100};
    for (int i = 0; i < 2; i++) {
        cuda_emulator_capability(gpus[i]);
        each_pair(33, 50, 72, PLAIN);
        each_pair(64, 48, 144, BIAS);
        each_pair(48, 96, 128, ACCUMULATE);
        each_pair(32, 64, 256, DGELU);
    }
}
#endif

static void no_such_products(struct check *c, const void *given) {
    (void)given;
    cr_expect_not(backend_multiplies_blocks(&c->be, &mx_four));
}
Test(matmul_blocks, never_of_mxfp4) {
    check_products(no_such_products, NULL);
}
