/* Values of codes in blocks, some columns of a row at a time. */
#include <assert.h>

#include "kernels/block_scale.h"
#include "kernels/cpu/cpu.h"

/* A loop for each element, so that the compiler knows it. at: index of the first code. */
static void widen_codes(float *values, const struct tensor *codes, int64_t at, int64_t n) {
    const uint8_t *bytes = codes->data;
#define LOOP(NAME)                    \
    if (codes->dtype == DTYPE_##NAME) \
        for (int64_t i = 0; i < n; i++) values[i] = element_value(bytes[at + i], DTYPE_##NAME);
    LOOP(E4M3)
    LOOP(E5M2)
#undef LOOP
    if (codes->dtype == DTYPE_E2M1)
        for (int64_t i = 0; i < n; i++)
            values[i] = element_value(bytes[(at + i) / 2] >> ((at + i) % 2 * 4), DTYPE_E2M1);
}

void cpu_dequantize_blocks(struct backend *be, const struct dequantize_blocks_args *args) {
    const struct quantize_format *format = &args->format;
    const struct tensor *scales = args->block_scales;
    int64_t rows = tensor_rows(args->out), columns = tensor_columns(args->out);
    int64_t across = blocks_of(columns, CPU_BLOCK);
    (void)be;
    assert(args->out->dtype == DTYPE_BF16 && args->codes->dtype == format->element);
    assert(scales->dtype == format->scale && CPU_BLOCK % format->columns == 0);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows * across; i++) {
        int64_t row = i / across, c = i % across * CPU_BLOCK,
                n = block_length(c, columns, CPU_BLOCK);
        const uint8_t *of_row = (const uint8_t *)scales->data +
                                row / format->rows * tensor_columns(scales) + c / format->columns;
        float values[CPU_BLOCK];
        widen_codes(values, args->codes, row * columns + c, n);
        for (int64_t first = 0; first < n; first += format->columns) {
            float scale = block_scale_value(of_row[first / format->columns], scales->dtype);
            int64_t end = first + block_length(first, n, format->columns);
            for (int64_t k = first; k < end; k++) values[k] *= scale;
        }
        dtype_store(args->out->data, args->out->dtype, (size_t)(row * columns + c), values,
                    (size_t)n);
    }
}
