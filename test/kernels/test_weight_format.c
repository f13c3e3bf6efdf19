/* Stored weights on the host, against bitsandbytes (test/golden/nf4.py) and the formula of fp8. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/code_value.h"
#include "kernels/weight_format.h"
#include "test/safetensors_find.h"

/* Returns a matrix whose memory is that of its codes, to be freed. */
static struct quantized_weight new_weight(enum weight_format format, int64_t rows,
                                          int64_t columns) {
    struct arena arena = {0};
    quantized_weight_take(&arena, format, rows, columns);
    size_t bytes = (size_t)round_up((int64_t)arena.used, ARENA_ALIGNMENT);
    arena = (struct arena){aligned_alloc(ARENA_ALIGNMENT, bytes), 0, bytes};
    cr_assert_not_null(arena.base);
    memset(arena.base, 0xa5, bytes);
    return quantized_weight_take(&arena, format, rows, columns);
}

static void open_fixture(struct safetensors *file) {
    struct error error;
    cr_assert(safetensors_open(file, "test/golden/nf4.safetensors", &error) == 0, "%s", error.text);
}

static const struct safetensors_entry *part_of(const struct safetensors *file, const char *name,
                                               const char *part) {
    char full[64];
    snprintf(full, sizeof full, "%s.%s", name, part);
    const struct safetensors_entry *entry = safetensors_find(file, full);
    cr_assert_not_null(entry, "no %s", full);
    return entry;
}

static void expect_part(const struct safetensors *file, const char *name, const char *part,
                        const void *data, size_t bytes) {
    const struct safetensors_entry *entry = part_of(file, name, part);
    cr_assert_eq(entry->bytes, bytes, "%s.%s: %zu bytes, not %zu", name, part, bytes,
                 (size_t)entry->bytes);
    cr_expect(safetensors_holds(file, entry, data), "%s.%s differs", name, part);
}

static void equals_bitsandbytes(const struct safetensors *file, const char *name) {
    const struct safetensors_entry *entry = part_of(file, name, "weight");
    int64_t rows = (int64_t)entry->shape[0], columns = (int64_t)entry->shape[1];
    int64_t count = rows * columns;
    uint16_t *stored = safetensors_data(file, entry);
    float *values = malloc((size_t)count * sizeof *values);
    cr_assert(stored && values);
    dtype_widen(values, stored, DTYPE_BF16, 0, (size_t)count);
    struct quantized_weight w = new_weight(WEIGHT_NF4, rows, columns);
    quantized_weight_store(&w, values, NULL);
    expect_part(file, name, "codes", w.codes.data, (size_t)(count + 1) / 2);
    expect_part(file, name, "scales", w.scales.data, tensor_bytes(&w.scales));
    expect_part(file, name, "second_scales", w.second_scales.data, tensor_bytes(&w.second_scales));
    expect_part(file, name, "mean", w.mean.data, sizeof(float));
    memset(values, 0xa5, (size_t)count * sizeof *values);
    for (int64_t first = 0; first < count; first += 77)
        quantized_weight_load(&w, values + first, first, count - first < 77 ? count - first : 77);
    expect_part(file, name, "values", values, (size_t)count * sizeof *values);
    free(w.codes.data);
    free(values);
    free(stored);
}

Test(weight_format, nf4_equals_bitsandbytes) {
    static const char *const names[] = {"one",   "short",   "whole", "odd",
                                        "zeros", "planted", "large"};
    struct safetensors file;
    open_fixture(&file);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) equals_bitsandbytes(&file, names[i]);
    safetensors_close(&file);
}

Test(weight_format, codes_of_scales_have_the_values_of_bitsandbytes) {
    struct safetensors file;
    float values[256];
    open_fixture(&file);
    for (uint32_t code = 0; code < 256; code++) values[code] = dynamic8_value(code);
    const struct safetensors_entry *entry = safetensors_find(&file, "dynamic8");
    cr_assert(entry && entry->bytes == sizeof values);
    cr_expect(safetensors_holds(&file, entry, values));
    safetensors_close(&file);
}

/* A row's largest value is 448, and the others are the nearest codes; a row of zeros has scale
 * 1. */
Test(weight_format, fp8_scales_each_row) {
    enum { ROWS = 3, COLUMNS = 5 };
    static const float values[ROWS][COLUMNS] = {
        {1, -2, 0.5f, 7, 3.3f}, {0}, {1e-6f, -1e-3f, 2e-4f, 0, 1e-9f}};
    struct quantized_weight w = new_weight(WEIGHT_FP8, ROWS, COLUMNS);
    quantized_weight_store(&w, &values[0][0], NULL);
    cr_expect_eq(tensor_count(&w.scales), ROWS);
    for (int row = 0; row < ROWS; row++) {
        float amax = row == 0 ? 7 : row == 1 ? 0 : 1e-3f, factor = amax > 0 ? 448 / amax : 1;
        cr_expect_eq(((const float *)w.scales.data)[row], 1 / factor);
        for (int i = 0; i < COLUMNS; i++) {
            uint8_t code = f8_from_f32(values[row][i] * factor, DTYPE_E4M3);
            float value;
            cr_expect_eq(((const uint8_t *)w.codes.data)[row * COLUMNS + i], code);
            quantized_weight_load(&w, &value, row * COLUMNS + i, 1);
            cr_expect_eq(value, f32_from_f8(code, DTYPE_E4M3) * (1 / factor));
        }
    }
    free(w.codes.data);
}

/* 4.127 bits a weight, and a mean. */
Test(weight_format, takes_as_much_as_qlora_says) {
    struct arena arena = {0};
    struct quantized_weight w = quantized_weight_take(&arena, WEIGHT_NF4, 4096, 4096);
    double bits = 8.0 * (double)quantized_weight_bytes(&w) / (4096.0 * 4096.0);
    cr_expect_float_eq(bits, 4 + 8.0 / 64 + 32.0 / (64 * 256), 1e-4, "%g bits", bits);
}
