/* Matmuls of 8-bit operands: exact values, scaled sums. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "data/util/random.h"
#include "test/device.h"
#include "test/kernels/check.h"
#include "test/kernels/reference.h"
#ifdef EMULATED
#include "test/cuda_emulator/control.h"
#include "test/cuda_emulator/fake_cublaslt.h"
#endif

enum epilogue { PLAIN, BIAS, ACCUMULATE, GELU, DGELU };

struct product {
    int64_t m, n, k;
    enum dtype a, b, out;
    bool transpose_a, transpose_b, by_row, by_column;
    enum epilogue epilogue;
};

/* Finite codes of all sizes, or normal values in bf16, and their values. */
static struct tensor codes(struct check *c, enum dtype dtype, int64_t rows, int64_t columns,
                           double **values) {
    int64_t count = rows * columns;
    if (!dtype_is_quantized(dtype)) {
        struct tensor tensor = check_normal(c, dtype, rows, columns, 1);
        *values = check_read(c, &tensor);
        return tensor;
    }
    uint8_t *bytes = malloc((size_t)count);
    uint64_t stream = c->stream++;
    *values = check_doubles(c, count);
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = random_bits(9, stream, (uint64_t)i);
        bytes[i] = (uint8_t)(bits % (dtype == DTYPE_E4M3 ? 0x70 : 0x44) | (bits >> 32 & 0x80));
        (*values)[i] = (double)f32_from_f8(bytes[i], dtype);
    }
    struct tensor tensor = {
        check_memory(c, CHECK_READ, bytes, (size_t)count), dtype, 2, {rows, columns}};
    free(bytes);
    return tensor;
}

/* Scales of an operand, one or `count`: a column, or a row if turned. */
static struct tensor scales(struct check *c, int64_t count, bool turned, float **values) {
    static float all[2][4096];
    uint64_t stream = c->stream++;
    *values = all[stream & 1];
    cr_assert_leq(count, 4096);
    for (int64_t i = 0; i < count; i++)
        (*values)[i] = 0.01f + 0.1f * (float)random_uniform(9, stream, (uint64_t)i);
    const size_t bytes = (size_t)count * sizeof **values;
    return (struct tensor){check_memory(c, CHECK_READ, *values, bytes),
                           DTYPE_F32,
                           2,
                           {turned ? 1 : count, turned ? count : 1}};
}

struct operands {
    struct tensor a, b, out, bias, pre_activation;
    struct amax *track_amax;
    double *a_values, *b_values, *before;
    float *a_scales, *b_scales;
};

static void verify(struct check *c, const struct product *p, const struct operands *o) {
    double *expected = check_doubles(c, p->m * p->n), *size = check_doubles(c, p->m * p->n);
    const double *bias = o->bias.data ? check_read(c, &o->bias) : NULL;
    const char *kind = p->epilogue == DGELU ? "matmul_dgelu" : "matmul_8_bit";
    double truncated = tolerance_of("matmul_8_bit_truncated")->arithmetic[DTYPE_F32] /
                       tolerance_of(kind)->arithmetic[DTYPE_F32];
    for (int64_t i = 0; i < p->m * p->n; i++) {
        int64_t row = i / p->n, column = i % p->n;
        double sum = 0, all = 0, low = 0, high = 0, largest = 0;
        for (int64_t l = 0; l < p->k; l++) {
            double x = o->a_values[p->transpose_a ? l * p->m + row : row * p->k + l];
            double y = o->b_values[p->transpose_b ? column * p->k + l : l * p->n + column];
            sum += x * y, all += fabs(x * y);
            low = fmin(low, sum), high = fmax(high, sum), largest = fmax(largest, fabs(x * y));
        }
        double scale = (double)o->a_scales[p->by_row ? row : 0] *
                       (double)o->b_scales[p->by_column ? column : 0];
        double added = bias ? bias[column] : o->before ? o->before[i] : 0;
        expected[i] = sum * scale + added;
        size[i] = all * scale + fabs(added);
        if (test_tensor_cores())
            size[i] += truncated * scale * fmax(largest, high - low) * sqrt((double)p->k + 2);
    }
    if (p->epilogue == GELU) {
        check_close(c, kind, &o->pre_activation, expected, size);
        const double *x = check_read(c, &o->pre_activation);
        for (int64_t i = 0; i < p->m * p->n; i++) expected[i] = reference_gelu(x[i]);
        check_close(c, "gelu_forward", &o->out, expected, x);
        return;
    }
    const double *x = p->epilogue == DGELU ? check_read(c, &o->pre_activation) : NULL;
    for (int64_t i = 0; x && i < p->m * p->n; i++) {
        expected[i] *= reference_gelu_derivative(x[i]);
        size[i] *= reference_gelu_sensitivity(x[i]);
    }
    check_close(c, kind, &o->out, expected, size);
}

static void body(struct check *c, const void *given) {
    const struct product *p = given;
    struct operands o = {0};
    bool sums = p->epilogue == ACCUMULATE;
    o.a = codes(c, p->a, p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k, &o.a_values);
    o.b = codes(c, p->b, p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n, &o.b_values);
    struct tensor a_scales = scales(c, p->by_row ? p->m : 1, p->transpose_a, &o.a_scales);
    struct tensor b_scales = scales(c, p->by_column ? p->n : 1, !p->transpose_b, &o.b_scales);
    o.out = sums ? check_sum(c, p->out, p->m, p->n) : check_output(c, p->out, p->m, p->n);
    if (sums) o.before = check_read(c, &o.out);
    if (p->epilogue == BIAS || p->epilogue == GELU) o.bias = check_normal(c, DTYPE_F32, p->n, 0, 1);
    if (p->epilogue == GELU) o.pre_activation = check_output(c, p->out, p->m, p->n);
    if (p->epilogue == DGELU) o.pre_activation = check_normal(c, p->out, p->m, p->n, 1.5);
    bool looks = p->epilogue == GELU || p->epilogue == DGELU;
    if (looks) o.track_amax = check_amax(c, 0, false);
    CHECK_OP(c, matmul, .out = &o.out, .a = &o.a, .b = &o.b, .a_scales = &a_scales,
             .b_scales = &b_scales, .bias = o.bias.data ? &o.bias : NULL,
             .epilogue = p->epilogue == GELU    ? MATMUL_GELU
                         : p->epilogue == DGELU ? MATMUL_DGELU
                                                : MATMUL_STORE,
             .pre_activation = looks ? &o.pre_activation : NULL, .transpose_a = p->transpose_a,
             .transpose_b = p->transpose_b, .accumulate = sums, .track_amax = o.track_amax);
    if (c->verify) verify(c, p, &o);
    if (c->verify && looks) check_amax_covers(c, o.track_amax, 0, false, &o.out);
}

static void each_type(int64_t m, int64_t n, int64_t k, enum epilogue epilogue) {
    static const enum dtype types[][3] = {{DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16},
                                          {DTYPE_E5M2, DTYPE_E4M3, DTYPE_BF16},
                                          {DTYPE_E4M3, DTYPE_E5M2, DTYPE_F32},
                                          {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16},
                                          {DTYPE_BF16, DTYPE_BF16, DTYPE_F32}};
    for (int t = 0; t < 5; t++)
        for (int variant = 0; variant < 8; variant++) {
            struct product p = {m,           n,           k,           types[t][0],
                                types[t][1], types[t][2], variant & 1, variant & 2,
                                variant & 4, variant & 4, epilogue};
            check_products(body, &p);
        }
}

Test(matmul_8_bit, shapes) {
    each_type(1, 1, 1, PLAIN);
    each_type(33, 50, 72, PLAIN);
    each_type(64, 48, 128, PLAIN);
}

/* One operand has a scale, the other one for each row or column. */
Test(matmul_8_bit, scales_of_both_kinds) {
    for (int by_row = 0; by_row < 2; by_row++)
        for (int i = 0; i < 2; i++) {
            struct product p = {i ? 32 : 33, i ? 48 : 50, i ? 64 : 72, DTYPE_E4M3,
                                DTYPE_E4M3,  DTYPE_BF16,  false,       true,
                                by_row,      !by_row,     BIAS};
            check_products(body, &p);
        }
}

Test(matmul_8_bit, epilogues) {
    each_type(77, 72, 40, BIAS);
    each_type(40, 72, 77, ACCUMULATE);
    each_type(26, 40, 37, GELU);
    each_type(26, 40, 37, DGELU);
}

/* Two panels each of the CPU's: of rows, columns and sums. */
Test(matmul_8_bit, panels) {
    const struct product products[] = {
        {50021, 19, 26, DTYPE_E4M3, DTYPE_E5M2, DTYPE_F32, true, true, false, false, ACCUMULATE},
        {19, 50021, 26, DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16, false, false, false, false, BIAS},
        {19, 26, 50021, DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16, false, true, true, true, GELU},
        {19, 26, 50021, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, false, true, false, false, ACCUMULATE},
        {50021, 19, 26, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, true, false, false, false, BIAS},
    };
    if (test_device() != DEVICE_CPU) cr_skip_test("panels are the CPU's");
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        check_products(body, &products[i]);
}

#ifdef EMULATED
/* Matmuls on a GPU with 8-bit tensor cores, with sizes that are multiples of 16 and with others:
 * the results are the same. */
static void each_on_the_library(int64_t m, int64_t n, int64_t k, enum epilogue epilogue,
                                bool takes_them) {
    static const enum dtype types[][3] = {{DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16},
                                          {DTYPE_E5M2, DTYPE_E4M3, DTYPE_F16},
                                          {DTYPE_E4M3, DTYPE_E5M2, DTYPE_F32}};
    for (int t = 0; t < 3; t++)
        for (int variant = 0; variant < 8; variant++) {
            struct product p = {m,           n,           k,           types[t][0],
                                types[t][1], types[t][2], variant & 1, variant & 2,
                                variant & 4, variant & 4, epilogue};
            check_products(body, &p);
            const struct fake_cublaslt *got = fake_cublaslt_counts();
            int a = p.a == DTYPE_E4M3 ? FAKE_E4M3 : FAKE_E5M2;
            int b = p.b == DTYPE_E4M3 ? FAKE_E4M3 : FAKE_E5M2;
            cr_assert_eq(got->b_type, takes_them ? a : FAKE_BF16);
            cr_assert_eq(got->a_type, takes_them ? b : FAKE_BF16);
            cr_assert_eq(got->scaled, takes_them && !p.by_row);
        }
}

Test(matmul_8_bit, tensor_cores_take_multiples_of_16) {
    each_on_the_library(32, 144, 272, PLAIN, true);
    each_on_the_library(144, 16, 32, PLAIN, true);
    each_on_the_library(32, 48, 40, PLAIN, false);
    each_on_the_library(40, 48, 32, PLAIN, false);
    each_on_the_library(32, 40, 48, PLAIN, false);
}

Test(matmul_8_bit, epilogues_on_tensor_cores) {
    each_on_the_library(32, 48, 80, BIAS, true);
    each_on_the_library(48, 32, 16, ACCUMULATE, true);
    each_on_the_library(16, 48, 32, GELU, true);
    each_on_the_library(16, 48, 32, DGELU, true);
}

Test(matmul_8_bit, older_gpus_multiply_in_bf16) {
    cuda_emulator_capability(80);
    each_on_the_library(32, 48, 80, BIAS, false);
    each_on_the_library(48, 32, 16, ACCUMULATE, false);
}

Test(matmul_8_bit, the_first_with_them_is_sm_89) {
    cuda_emulator_capability(89);
    each_on_the_library(32, 48, 80, PLAIN, true);
    cuda_emulator_capability(86);
    each_on_the_library(32, 48, 80, PLAIN, false);
}

/* Large sizes exercise whole and partial tiles of the transposing kernel. */
Test(matmul_8_bit, transposed_tiles) {
    struct product p = {400,  144,   272,   DTYPE_E4M3, DTYPE_E5M2, DTYPE_BF16,
                        true, false, false, false,      PLAIN};
    check_products(body, &p);
    cr_assert_eq(fake_cublaslt_counts()->b_type, FAKE_E4M3);
}

/* The library adds a bias in the output's dtype, unless it multiplies by no scales. */
static void biased(struct check *c, const void *given) {
    bool by_vector = *(const bool *)given;
    struct operands o = {0};
    struct product p = {16,    32,   48,        DTYPE_E4M3, DTYPE_E4M3, DTYPE_BF16,
                        false, true, by_vector, by_vector,  BIAS};
    o.a = codes(c, p.a, p.m, p.k, &o.a_values);
    o.b = codes(c, p.b, p.n, p.k, &o.b_values);
    struct tensor a_scales = scales(c, by_vector ? p.m : 1, false, &o.a_scales);
    struct tensor b_scales = scales(c, by_vector ? p.n : 1, false, &o.b_scales);
    o.out = check_output(c, DTYPE_BF16, p.m, p.n);
    o.bias = check_normal(c, DTYPE_BF16, p.n, 0, 1);
    CHECK_OP(c, matmul, .out = &o.out, .a = &o.a, .b = &o.b, .a_scales = &a_scales,
             .b_scales = &b_scales, .bias = &o.bias, .transpose_b = true,
             .fast_accumulation = by_vector);
    if (c->verify) verify(c, &p, &o);
}

Test(matmul_8_bit, biases_and_accumulation_as_asked) {
    for (int by_vector = 0; by_vector < 2; by_vector++) {
        bool given = by_vector;
        check_products(biased, &given);
        cr_assert_eq(fake_cublaslt_counts()->epilogue, by_vector ? FAKE_DEFAULT : FAKE_BIAS);
        cr_assert_eq(fake_cublaslt_counts()->fast, by_vector);
    }
    bool by_tensor = false;
    fake_cublaslt_refuse(FAKE_BIAS);
    check_products(biased, &by_tensor);
    cr_assert_eq(fake_cublaslt_counts()->epilogue, FAKE_DEFAULT);
    cr_assert_eq(fake_cublaslt_counts()->a_type, FAKE_E4M3);
}
#endif
