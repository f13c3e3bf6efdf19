/* Operations of optimizers on whole matrices. */
#include <assert.h>
#include <math.h>

#include "kernels/cpu/cpu.h"

static double block_squares(const struct tensor *in, int64_t first, int64_t n) {
    float buffer[CPU_BLOCK];
    const float *values = dtype_widen(buffer, in->data, in->dtype, first, n);
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += (double)values[i] * values[i];
    return sum;
}

size_t cpu_normalize_scratch(struct backend *be, const struct normalize_args *args) {
    (void)be;
    return (size_t)blocks_of(tensor_count(args->in), CPU_BLOCK) * sizeof(double);
}

void cpu_normalize(struct backend *be, const struct normalize_args *args) {
    int64_t count = tensor_count(args->in), blocks = blocks_of(count, CPU_BLOCK);
    double *squares = backend_workspace(be, cpu_normalize_scratch(be, args)), total = 0;
    assert(tensor_count(args->out) == count);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t first = block * CPU_BLOCK;
        squares[block] = block_squares(args->in, first, block_length(first, count, CPU_BLOCK));
    }
    for (int64_t block = 0; block < blocks; block++) total += squares[block];
    const float norm = (float)sqrt(total), divisor = norm > args->epsilon ? norm : args->epsilon;
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t first = block * CPU_BLOCK, n = block_length(first, count, CPU_BLOCK);
        float buffer[CPU_BLOCK], scaled[CPU_BLOCK];
        const float *in = dtype_widen(buffer, args->in->data, args->in->dtype, first, n);
        for (int64_t i = 0; i < n; i++) scaled[i] = in[i] / divisor;
        dtype_store(args->out->data, args->out->dtype, first, scaled, n);
    }
}

/* Elements first .. first + n of a group of a row. */
static void sum_piece(const struct weighted_sum_args *args, int64_t row, int64_t group,
                      int64_t first, int64_t n) {
    float a_buffer[CPU_BLOCK], b_buffer[CPU_BLOCK], sums[CPU_BLOCK];
    const struct tensor *a = args->a, *b = args->b, *out = args->out;
    const int64_t in_row = args->a_first + group * args->a_step + first;
    const int64_t out_row = args->out_first + group * args->out_step + first;
    const int64_t b_row = group * args->group + first;
    const float *y = NULL;
    const float *x = dtype_widen(a_buffer, a->data, a->dtype, row * tensor_columns(a) + in_row, n);
    if (b) y = dtype_widen(b_buffer, b->data, b->dtype, row * args->columns + b_row, n);
    for (int64_t i = 0; i < n; i++) {
        float value = args->alpha * x[i];
        sums[i] = y ? value + args->beta * y[i] : value;
    }
    dtype_store(out->data, out->dtype, row * tensor_columns(out) + out_row, sums, n);
}

void cpu_weighted_sum(struct backend *be, const struct weighted_sum_args *args) {
    (void)be;
    const int64_t group = args->group ? args->group : args->columns;
    const int64_t rows = tensor_rows(args->out), groups = group ? args->columns / group : 0;
    const int64_t pieces = blocks_of(group, CPU_BLOCK);
    assert(tensor_rows(args->a) == rows && groups * group == args->columns);
    assert(!args->b || tensor_columns(args->b) == args->columns);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows * groups * pieces; i++) {
        int64_t first = i % pieces * CPU_BLOCK;
        sum_piece(args, i / pieces / groups, i / pieces % groups, first,
                  block_length(first, group, CPU_BLOCK));
    }
}
