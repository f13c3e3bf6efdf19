#include "kernels/quantize_format.h"

#include <assert.h>

struct quantize_format quantize_format_transposed(const struct quantize_format *format) {
    struct quantize_format transposed = *format;
    transposed.rows = format->columns;
    transposed.columns = format->rows;
    return transposed;
}

bool quantize_format_equal(const struct quantize_format *a, const struct quantize_format *b) {
    return a->element == b->element && a->rows == b->rows && a->columns == b->columns &&
           a->scale == b->scale && a->rounding == b->rounding && a->stochastic == b->stochastic;
}

bool quantize_format_in_blocks(const struct quantize_format *format) {
    return format->scale != DTYPE_F32;
}

bool quantize_format_has_tensor_scale(const struct quantize_format *format) {
    return format->scale == DTYPE_E4M3;
}

bool quantize_format_per_tensor(const struct quantize_format *format) {
    return format->rows == 0 && format->columns == 0;
}

static int64_t blocks(int64_t size, int64_t block, bool whole) {
    assert(block == 0 || !whole || size % block == 0);
    return block ? (size + block - 1) / block : 1;
}

struct tensor quantize_format_scales(const struct quantize_format *format, int64_t rows,
                                     int64_t columns) {
    const bool whole = !quantize_format_in_blocks(format);
    int64_t down = blocks(rows, format->rows, whole);
    return (struct tensor){NULL, format->scale, 2, {down, blocks(columns, format->columns, whole)}};
}
