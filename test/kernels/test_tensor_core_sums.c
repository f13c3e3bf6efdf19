/* Emulated sums of tensor cores against mmaemu (test/golden/sums.py). */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/open/backend_open.h"
#include "test/device.h"
#include "test/kernels/check.h"
#include "test/safetensors_find.h"

struct fixture {
    struct safetensors file;
    const char *pair;
    enum dtype a, b;
    enum matmul_sums sums;
    bool fast, transpose_a, transpose_b;
};

static const struct safetensors_entry *find(const struct safetensors *file, const char *pair,
                                            const char *part) {
    char name[64];
    snprintf(name, sizeof name, "%s.%s", pair, part);
    const struct safetensors_entry *entry = safetensors_find(file, name);
    cr_assert_not_null(entry, "no %s", name);
    return entry;
}

/* Returns codes [rows, columns] of a fixture, as they are or transposed. */
static struct tensor codes(struct check *c, const struct fixture *f, const char *part,
                           enum dtype dtype, bool transposed) {
    const struct safetensors_entry *entry = find(&f->file, f->pair, part);
    int64_t rows = (int64_t)entry->shape[0], columns = (int64_t)entry->shape[1];
    uint8_t *given = safetensors_data(&f->file, entry), *turned = malloc((size_t)(rows * columns));
    cr_assert(given && turned);
    for (int64_t i = 0; i < rows * columns; i++)
        turned[transposed ? i % columns * rows + i / columns : i] = given[i];
    struct tensor tensor = {check_memory(c, CHECK_READ, turned, (size_t)(rows * columns)),
                            dtype,
                            2,
                            {transposed ? columns : rows, transposed ? rows : columns}};
    free(given);
    free(turned);
    return tensor;
}

static void body(struct check *c, const void *given) {
    const struct fixture *f = given;
    char part[32];
    struct tensor a = codes(c, f, "a", f->a, f->transpose_a);
    struct tensor b = codes(c, f, "b", f->b, !f->transpose_b);
    const double one[1] = {1};
    struct tensor scale = check_tensor(c, CHECK_READ, DTYPE_F32, 1, 1, one);
    snprintf(part, sizeof part, "%s.%s", f->sums == MATMUL_SUMS_HOPPER ? "hopper" : "ada",
             f->fast ? "fast" : "slow");
    const struct safetensors_entry *entry = find(&f->file, f->pair, part);
    float *expected = safetensors_data(&f->file, entry);
    int64_t m = (int64_t)entry->shape[0], n = (int64_t)entry->shape[1];
    struct tensor out = check_output(c, DTYPE_F32, m, n);
    CHECK_OP(c, matmul, .out = &out, .a = &a, .b = &b, .a_scales = &scale, .b_scales = &scale,
             .transpose_a = f->transpose_a, .transpose_b = f->transpose_b,
             .fast_accumulation = f->fast, .sums = f->sums);
    double *doubles = check_doubles(c, m * n);
    for (int64_t i = 0; i < m * n; i++) doubles[i] = expected[i];
    if (c->verify) check_equal(c, part, &out, doubles);
    free(expected);
}

Test(tensor_core_sums, equal_mmaemu) {
    static const struct {
        const char *pair;
        enum dtype a, b;
    } pairs[] = {{"e4m3.e4m3", DTYPE_E4M3, DTYPE_E4M3},
                 {"e5m2.e4m3", DTYPE_E5M2, DTYPE_E4M3},
                 {"e4m3.e5m2", DTYPE_E4M3, DTYPE_E5M2}};
    struct fixture f;
    struct error error;
    if (test_device() != DEVICE_CPU) cr_skip_test("sums of a GPU are its own");
    cr_assert(safetensors_open(&f.file, "test/golden/sums.safetensors", &error) == 0, "%s",
              error.text);
    for (int i = 0; i < 3; i++)
        for (int variant = 0; variant < 16; variant++) {
            f.pair = pairs[i].pair, f.a = pairs[i].a, f.b = pairs[i].b;
            f.sums = variant & 1 ? MATMUL_SUMS_ADA : MATMUL_SUMS_HOPPER;
            f.fast = variant & 2, f.transpose_a = variant & 4, f.transpose_b = variant & 8;
            check_everywhere(body, &f);
        }
    safetensors_close(&f.file);
}

/* A code that is not finite makes its outputs NaN, and the others exact sums. */
Test(tensor_core_sums, not_finite) {
    struct backend be;
    struct error error;
    uint8_t a_codes[2 * 16] = {0}, b_codes[16 * 16];
    float sums[2 * 16], one = 1;
    if (test_device() != DEVICE_CPU) cr_skip_test("sums of a GPU are its own");
    cr_assert_eq(
        backend_open(&be, &(const struct backend_options){DEVICE_CPU, .threads = 1}, &error), 0);
    for (int i = 0; i < 16 * 16; i++) b_codes[i] = 0x38; /* 1 */
    a_codes[0] = 0x7f, a_codes[16] = 0x40;               /* NaN; 2 */
    struct tensor a = {a_codes, DTYPE_E4M3, 2, {2, 16}}, b = {b_codes, DTYPE_E4M3, 2, {16, 16}};
    struct tensor out = {sums, DTYPE_F32, 2, {2, 16}}, scale = {&one, DTYPE_F32, 2, {1, 1}};
    const struct matmul_args args = {.out = &out,
                                     .a = &a,
                                     .b = &b,
                                     .a_scales = &scale,
                                     .b_scales = &scale,
                                     .sums = MATMUL_SUMS_ADA};
    backend_plan_begin(&be);
    be.op->matmul(&be, &args);
    cr_assert_eq(backend_plan_end(&be, &error), 0, "%s", error.text);
    be.op->matmul(&be, &args);
    for (int i = 0; i < 16; i++) {
        cr_expect(isnan(sums[i]));
        cr_expect_eq(sums[16 + i], 2);
    }
    backend_close(&be);
}
