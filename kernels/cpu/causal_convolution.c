/* Causal depthwise convolution. A task computes a block of columns for all rows, and keeps the last
 * rows, and in the backward pass the sums of the next ones, in rings of K rows. */
#include <assert.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

enum { COLUMNS = 128 };

/* A block of columns of one sequence. */
struct block {
    const struct tensor *in;
    const int32_t *first_keys; /* of the sequence, or NULL */
    int64_t first_row, column; /* of the sequence; of the block */
    int columns, kernel;       /* K */
    bool resumes;
    float weight[CONVOLUTION_KERNEL_MAX][COLUMNS];
    float ring[CONVOLUTION_KERNEL_MAX][COLUMNS]; /* row t is at t % K */
};

static int64_t blocks_count(const struct tensor *weight) {
    return blocks_of(tensor_rows(weight), COLUMNS);
}

static float *ring_row(struct block *b, int64_t t) {
    return b->ring[(t + b->kernel) % b->kernel];
}

/* Begins at the first row of a sequence. */
static void block_begin(struct block *b, const struct tensor *in, const struct tensor *weight,
                        const int32_t *first_keys, int64_t sequence, int64_t block) {
    float values[CONVOLUTION_KERNEL_MAX * COLUMNS];
    b->in = in, b->kernel = (int)tensor_columns(weight), b->resumes = false;
    b->first_row = sequence * in->shape[1], b->column = block * COLUMNS;
    b->first_keys = first_keys ? first_keys + b->first_row : NULL;
    b->columns = (int)block_length(b->column, tensor_rows(weight), COLUMNS);
    assert(in->rank == 3 && b->kernel <= CONVOLUTION_KERNEL_MAX);
    assert(tensor_columns(in) >= tensor_rows(weight));
    const float *w = dtype_widen(values, weight->data, weight->dtype, b->column * b->kernel,
                                 b->columns * b->kernel);
    for (int c = 0; c < b->columns; c++)
        for (int j = 0; j < b->kernel; j++) b->weight[j][c] = w[c * b->kernel + j];
}

/* Reads row t of `from`, whose sequence begins at row `first`, as row `as` of the ring. */
static void read_row(struct block *b, const struct tensor *from, int64_t first, int64_t t,
                     int64_t as) {
    float *to = ring_row(b, as);
    const size_t at = (size_t)((first + t) * tensor_columns(from) + b->column);
    const float *values = dtype_widen(to, from->data, from->dtype, at, (size_t)b->columns);
    if (values != to) memcpy(to, values, (size_t)b->columns * sizeof *to);
}

/* Returns j of the first row that row t reads, which is t - K + 1 + j. */
static int first_tap(const struct block *b, int64_t t) {
    int64_t first = b->first_keys ? b->first_keys[t] : 0, reach = t - b->kernel + 1;
    if (first == 0 && b->resumes) return 0;
    return first > reach ? (int)(first - reach) : 0;
}

/* sum = the convolution of row t. */
static void convolve(struct block *b, float *sum, int64_t t) {
    memset(sum, 0, COLUMNS * sizeof *sum);
    for (int j = first_tap(b, t); j < b->kernel; j++) {
        const float *row = ring_row(b, t - b->kernel + 1 + j), *weight = b->weight[j];
#pragma omp simd
        for (int c = 0; c < b->columns; c++) sum[c] += weight[c] * row[c];
    }
}

/* The tail is replaced after the last row that counts, when the ring holds it, but for rows before
 * the first one. */
static void write_tail(struct block *b, const struct tensor *tail, int64_t sequence, int64_t rows) {
    const int64_t before = b->kernel - 1;
    for (int64_t i = 0; i < before; i++) {
        float *row = ring_row(b, rows - before + i);
        if (rows - before + i < 0 && !b->resumes) memset(row, 0, sizeof b->ring[0]);
        dtype_store(tail->data, tail->dtype,
                    (size_t)((sequence * before + i) * tensor_columns(tail) + b->column), row,
                    (size_t)b->columns);
    }
}

void cpu_causal_convolution_forward(struct backend *be,
                                    const struct causal_convolution_forward_args *args) {
    const struct tensor *in = args->in, *out = args->out, *tail = args->tail;
    const int64_t blocks = blocks_count(args->weight), length = in->shape[1];
    (void)be;
    assert(tensor_columns(out) == tensor_rows(args->weight));
    assert(tensor_rows(in) == tensor_rows(out) && (!tail || tail->dtype == in->dtype));
#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < in->shape[0] * blocks; task++) {
        struct block b;
        float sum[COLUMNS];
        int64_t sequence = task / blocks;
        block_begin(&b, in, args->weight, args->first_keys, sequence, task % blocks);
        b.resumes = tail && args->resumes;
        for (int64_t t = 1 - b.kernel; b.resumes && t < 0; t++)
            read_row(&b, tail, sequence * (b.kernel - 1), t + b.kernel - 1, t);
        for (int64_t t = 0; t < length; t++) {
            read_row(&b, in, b.first_row, t, t);
            convolve(&b, sum, t);
#pragma omp simd
            for (int c = 0; c < b.columns; c++) sum[c] /= 1.0f + exp_f32(-sum[c]);
            dtype_store(out->data, out->dtype,
                        (size_t)((b.first_row + t) * tensor_columns(out) + b.column), sum,
                        (size_t)b.columns);
            if (tail && t + 1 == args->state_rows) write_tail(&b, tail, sequence, t + 1);
        }
    }
}

size_t
cpu_causal_convolution_backward_scratch(struct backend *be,
                                        const struct causal_convolution_backward_args *args) {
    (void)be, (void)args;
    return 0;
}

/* Adds row t's share to the sums of the rows that it reads and to dweight [K, COLUMNS]. */
static void row_backward(struct block *b, float dweight[][COLUMNS], float sums[][COLUMNS],
                         const struct tensor *dout, int64_t t) {
    float buffer[COLUMNS], d[COLUMNS];
    const size_t at = (size_t)((b->first_row + t) * tensor_columns(dout) + b->column);
    const float *dvalues = dtype_widen(buffer, dout->data, dout->dtype, at, (size_t)b->columns);
    convolve(b, d, t);
#pragma omp simd
    for (int c = 0; c < b->columns; c++) {
        const float x = d[c], s = 1.0f / (1.0f + exp_f32(-x));
        d[c] = dvalues[c] * (s + x * s * (1.0f - s));
    }
    for (int j = first_tap(b, t); j < b->kernel; j++) {
        const int64_t row = t - b->kernel + 1 + j;
        const float *weight = b->weight[j], *in = ring_row(b, row);
        float *sum = sums[row % b->kernel], *dw = dweight[j];
#pragma omp simd
        for (int c = 0; c < b->columns; c++) {
            sum[c] += weight[c] * d[c];
            dw[c] += d[c] * in[c];
        }
    }
}

void cpu_causal_convolution_backward(struct backend *be,
                                     const struct causal_convolution_backward_args *args) {
    const struct tensor *in = args->in, *din = args->din;
    const int64_t blocks = blocks_count(args->weight), length = in->shape[1];
    (void)be;
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        struct block b = {.kernel = (int)tensor_columns(args->weight)};
        float dweight[CONVOLUTION_KERNEL_MAX][COLUMNS] = {{0}};
        float sums[CONVOLUTION_KERNEL_MAX][COLUMNS], total[CONVOLUTION_KERNEL_MAX * COLUMNS];
        for (int64_t sequence = 0; sequence < in->shape[0]; sequence++) {
            block_begin(&b, in, args->weight, args->first_keys, sequence, block);
            memset(sums, 0, sizeof sums);
            for (int64_t t = 0; t < length + b.kernel - 1; t++) {
                const int64_t done = t - b.kernel + 1; /* no later row reads it */
                if (t < length) {
                    read_row(&b, in, b.first_row, t, t);
                    row_backward(&b, dweight, sums, args->dout, t);
                }
                if (done < 0) continue;
                float *sum = sums[done % b.kernel];
                dtype_store(din->data, din->dtype,
                            (size_t)((b.first_row + done) * tensor_columns(din) + b.column), sum,
                            (size_t)b.columns);
                memset(sum, 0, sizeof sums[0]);
            }
        }
        for (int c = 0; c < b.columns; c++)
            for (int j = 0; j < b.kernel; j++) total[c * b.kernel + j] = dweight[j][c];
        for (int c = 0; c < b.columns * b.kernel; c += CPU_BLOCK)
            cpu_accumulate(args->dweight, b.column * b.kernel + c, total + c,
                           block_length(c, b.columns * b.kernel, CPU_BLOCK));
    }
}
