/* The gated delta rule: kernels/delta_chunk.h, with one task for each sequence and key head. Tasks
 * are independent, so the result does not depend on their distribution over threads. */
#include <assert.h>
#include <omp.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu.h"

#define DELTA_FUNCTION       static
#define EACH_INDEX(i, count) _Pragma("omp simd") for (int i = 0; i < (count); i++)
#define EACH_ELEMENT(i, rows, j, columns) \
    for (int i = 0; i < (rows); i++) _Pragma("omp simd") for (int j = 0; j < (columns); j++)
#define BARRIER() (void)0

static void delta_product(float *out, int rows, int columns, const float *a, int row_step, int step,
                          const float *b, int count, bool add) {
    for (int j = 0; j < columns; j += PAIR)
        for (int i = 0; i < rows; i += TILE_ROWS) {
            float *to = out + i * columns + j;
            const float *left = a + i * row_step;
            const enum start start = add ? START_ADD : START_ZERO;
            if (columns - j >= PAIR)
                tile_product(false, 2, to, columns, left, row_step, step, b + j, columns, count,
                             start, NULL);
            else
                tile_product(false, 1, to, columns, left, row_step, step, b + j, columns, count,
                             start, NULL);
        }
}

static void delta_transpose(float *out, const float *in, int rows, int columns) {
    transpose(out, rows, in, columns, rows, columns);
}

static void delta_dots(float *out, const float *a, const float *b, int rows, int columns) {
    for (int i = 0; i < rows; i++, a += columns, b += columns) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int j = 0; j < columns; j++) sum += a[j] * b[j];
        out[i] = sum;
    }
}

static void delta_load(float *to, int width, int padded, const struct tensor *from, int64_t row,
                       int64_t column, int rows, int columns) {
    for (int i = 0; i < padded; i++, to += width) {
        const size_t at = (size_t)((row + i) * tensor_columns(from) + column);
        const int valid = i < rows ? columns : 0;
        const float *values = dtype_widen(to, from->data, from->dtype, at, (size_t)valid);
        if (values != to) memcpy(to, values, (size_t)valid * sizeof *to);
        memset(to + valid, 0, (size_t)(width - valid) * sizeof *to);
    }
}

static void delta_store(const struct tensor *to, int64_t row, int64_t column, int rows, int columns,
                        const float *from, int width) {
    for (int i = 0; i < rows; i++)
        dtype_store(to->data, to->dtype, (size_t)((row + i) * tensor_columns(to) + column),
                    from + (int64_t)i * width, (size_t)columns);
}

#include "kernels/delta_chunk.h"

/* Runs the tasks of one pass, with `floats` floats of scratch for each thread. */
static void run_tasks(struct backend *be, const struct delta_rule *r, bool backward, float *scratch,
                      int64_t floats) {
    const int64_t tasks = r->qkv.shape[0] * r->key_heads;
#pragma omp parallel for schedule(dynamic) num_threads(be->device.threads) if (tasks > 1)
    for (int64_t task = 0; task < tasks; task++) {
        float *memory = scratch + omp_get_thread_num() * floats;
        const int key_head = (int)(task % r->key_heads);
        if (backward) delta_backward(r, memory, task / r->key_heads, key_head);
        else delta_forward(r, memory, task / r->key_heads, key_head);
    }
}

size_t cpu_delta_rule_forward_scratch(struct backend *be,
                                      const struct delta_rule_forward_args *args) {
    const struct delta_rule r = delta_rule_of_forward(args);
    return (size_t)(be->device.threads * delta_chunk_at(NULL, &r, false).used) * sizeof(float);
}

void cpu_delta_rule_forward(struct backend *be, const struct delta_rule_forward_args *args) {
    const struct delta_rule r = delta_rule_of_forward(args);
    float *scratch = backend_workspace(be, cpu_delta_rule_forward_scratch(be, args));
    run_tasks(be, &r, false, scratch, delta_chunk_at(NULL, &r, false).used);
}

/* Floats of the partial sums of dA_log and ddt_bias, which come before the buffers. */
static int64_t sums_floats(const struct delta_rule *r) {
    return round_up(r->qkv.shape[0] * 2 * r->value_heads, LANES);
}

size_t cpu_delta_rule_backward_scratch(struct backend *be,
                                       const struct delta_rule_backward_args *args) {
    const struct delta_rule r = delta_rule_of_backward(args, NULL);
    const int64_t buffers = be->device.threads * delta_chunk_at(NULL, &r, true).used;
    return (size_t)(sums_floats(&r) + buffers) * sizeof(float);
}

void cpu_delta_rule_backward(struct backend *be, const struct delta_rule_backward_args *args) {
    float *sums = backend_workspace(be, cpu_delta_rule_backward_scratch(be, args));
    const struct delta_rule r = delta_rule_of_backward(args, sums);
    run_tasks(be, &r, true, sums + sums_floats(&r), delta_chunk_at(NULL, &r, true).used);
    cpu_add_partials(args->dA_log, sums, r.qkv.shape[0], 2 * r.value_heads);
    cpu_add_partials(args->ddt_bias, sums + r.value_heads, r.qkv.shape[0], 2 * r.value_heads);
}
