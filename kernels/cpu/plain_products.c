/* Matrix products by plain loops, for builds without oneDNN: correct, deterministic for any number
 * of threads, and several times slower. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/product_library.h"

/* One thread computes a tile of out: panels of a and b are copied so that both are read along rows,
 * and one row of sums stays in registers. */
enum { TILE_ROWS = 32, TILE_COLUMNS = 128, TILE_DEPTH = 128 };

/* panel[i][j] = the matrix at (row + i, column + j), or zero beyond the remaining columns.
 * row_stride and column_stride are the strides of the matrix. */
static void copy_panel(float *panel, int panel_columns, const float *matrix, int64_t row_stride,
                       int64_t column_stride, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++)
            panel[i * panel_columns + j] = matrix[i * row_stride + j * column_stride];
        for (int64_t j = columns; j < panel_columns; j++) panel[i * panel_columns + j] = 0;
    }
}

static void tile(const struct product_shape *s, float *out, const float *a, const float *b,
                 const float *bias, int64_t row, int64_t column) {
    float a_panel[TILE_ROWS * TILE_DEPTH], b_panel[TILE_DEPTH * TILE_COLUMNS];
    float sums[TILE_ROWS][TILE_COLUMNS] = {{0}};
    int64_t rows = block_length(row, s->m, TILE_ROWS);
    int64_t columns = block_length(column, s->n, TILE_COLUMNS);
    int64_t a_row = s->transpose_a ? 1 : s->k, a_column = s->transpose_a ? s->m : 1;
    int64_t b_row = s->transpose_b ? 1 : s->n, b_column = s->transpose_b ? s->k : 1;
    for (int64_t k = 0; k < s->k; k += TILE_DEPTH) {
        int64_t depth = block_length(k, s->k, TILE_DEPTH);
        copy_panel(a_panel, TILE_DEPTH, a + row * a_row + k * a_column, a_row, a_column, rows,
                   depth);
        copy_panel(b_panel, TILE_COLUMNS, b + k * b_row + column * b_column, b_row, b_column, depth,
                   columns);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t d = 0; d < depth; d++) {
                float factor = a_panel[i * TILE_DEPTH + d];
                for (int j = 0; j < TILE_COLUMNS; j++)
                    sums[i][j] += factor * b_panel[d * TILE_COLUMNS + j];
            }
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            float *element = &out[(row + i) * s->n + column + j];
            float sum = sums[i][j] + (bias ? bias[column + j] : 0);
            *element = s->accumulate ? *element + sum : sum;
        }
}

void cpu_plain_product(const struct product_shape *shape, float *out, const float *a,
                       const float *b, const float *bias) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t row = 0; row < shape->m; row += TILE_ROWS)
        for (int64_t column = 0; column < shape->n; column += TILE_COLUMNS)
            tile(shape, out, a, b, bias, row, column);
}
