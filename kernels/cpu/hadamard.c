/* Hadamard transforms of 16 rows: four stages of sums and differences of rows. */
#include <assert.h>

#include "kernels/cpu/cpu.h"
#include "kernels/hadamard.h"

/* Transforms n columns of HADAMARD_SIZE rows. */
static void transform(float rows[HADAMARD_SIZE][CPU_BLOCK], int64_t n) {
    for (int distance = 1; distance < HADAMARD_SIZE; distance *= 2)
        for (int k = 0; k < HADAMARD_SIZE; k++) {
            if (k & distance) continue;
            float *a = rows[k], *b = rows[k + distance];
            for (int64_t i = 0; i < n; i++) {
                float sum = a[i] + b[i], difference = a[i] - b[i];
                a[i] = sum, b[i] = difference;
            }
        }
}

/* Transforms columns c .. c + n - 1 of the rows from `first` on. */
static void transform_part(const struct hadamard_args *args, int64_t first, int64_t c, int64_t n) {
    float rows[HADAMARD_SIZE][CPU_BLOCK], buffer[CPU_BLOCK];
    const struct tensor *in = args->in, *out = args->out;
    int64_t columns = tensor_columns(in);
    int64_t count = block_length(first, tensor_rows(in), HADAMARD_SIZE);
    const bool whole = count == HADAMARD_SIZE;
    for (int64_t k = 0; k < count; k++) {
        size_t at = (size_t)((first + k) * columns + c);
        const float *values = dtype_widen(buffer, in->data, in->dtype, at, (size_t)n);
        const float factor = whole ? hadamard_factor(args->signs, (int)k) : 1;
        for (int64_t i = 0; i < n; i++) rows[k][i] = factor * values[i];
    }
    if (whole) transform(rows, n);
    for (int64_t k = 0; k < count; k++) {
        int64_t at = (first + k) * columns + c;
        dtype_store(out->data, out->dtype, (size_t)at, rows[k], (size_t)n);
        cpu_track_amax(args->track_amax, out, at, n);
    }
}

void cpu_hadamard(struct backend *be, const struct hadamard_args *args) {
    int64_t columns = tensor_columns(args->in), across = blocks_of(columns, CPU_BLOCK);
    int64_t bands = blocks_of(tensor_rows(args->in), HADAMARD_SIZE);
    (void)be;
    assert(tensor_count(args->out) == tensor_count(args->in) && args->out->dtype == DTYPE_BF16);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < bands * across; i++) {
        int64_t c = i % across * CPU_BLOCK;
        transform_part(args, i / across * HADAMARD_SIZE, c, block_length(c, columns, CPU_BLOCK));
    }
}
