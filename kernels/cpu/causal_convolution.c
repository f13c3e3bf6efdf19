/* Causal depthwise convolution: kernels/causal_convolution.h, with blocks of columns. Threads take
 * neighbouring blocks of the same rows, so that pages are read and written from end to end. */
#include <assert.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

enum { COLUMNS = 1024 };

/* A block of columns of a tensor; NULL: none. */
struct rows {
    const struct tensor *tensor;
    int64_t at; /* of the sequence's first row */
};

typedef float *lanes;
#define CONVOLUTION                static
#define CONVOLUTION_ON_ROWS        static
#define ROWS                       struct rows
#define LANE(row, i)               (row)[i]
#define EACH_LANE(c, i)            _Pragma("omp simd") for (int i = 0; i < (c)->columns; i++)
#define EACH_TAP(j)                for (int j = 0; j < TAPS; j++)
#define load_row(c, row, rows, t)  load_columns(*(row), rows, t, (c)->columns)
#define store_row(c, rows, t, row) store_columns(rows, t, row, (c)->columns)

static inline float logistic(float x) {
    return 1.0f / (1.0f + exp_f32(-x));
}

static inline float silu(float x) {
    return x / (1.0f + exp_f32(-x));
}

static void load_columns(float *row, struct rows from, int64_t t, int columns) {
    const struct tensor *in = from.tensor;
    const size_t at = (size_t)(from.at + t * tensor_columns(in));
    const float *values = dtype_widen(row, in->data, in->dtype, at, (size_t)columns);
    if (values != row) memcpy(row, values, (size_t)columns * sizeof *row);
}

static void store_columns(struct rows to, int64_t t, const float *row, int columns) {
    const struct tensor *out = to.tensor;
    const size_t at = (size_t)(to.at + t * tensor_columns(out));
    dtype_store(out->data, out->dtype, at, row, (size_t)columns);
}

#include "kernels/causal_convolution.h"

/* Tensors of a pass. */
struct pass {
    const struct tensor *weight, *in, *out, *tail; /* out: dout in the backward pass */
    const struct tensor *din;                      /* of the backward pass, or NULL */
    float *partials;
};

static void run_task(const struct pass *p, struct convolution c, int64_t segment, int64_t column) {
    float memory[4][TAPS][COLUMNS], x[COLUMNS], d[COLUMNS], *dweight[TAPS], *sums[TAPS];
    const int64_t sequence = segment / segments_of(p->in);
    const struct tensor *tensors[] = {p->in, p->out, p->din, p->tail}, *weight = p->weight;
    struct rows rows[4] = {{0}};
    for (int i = 0; i < 4; i++) {
        const int64_t length = i < 3 ? c.length : c.kernel - 1;
        if (!tensors[i]) continue;
        rows[i].tensor = tensors[i];
        rows[i].at = sequence * length * tensor_columns(tensors[i]) + column;
    }
    c.columns = (int)block_length(column, c.columns, COLUMNS);
    begin_task(&c, sequence, segment % segments_of(p->in));
    const float *w = dtype_widen(memory[2][0], weight->data, weight->dtype,
                                 (size_t)(column * c.kernel), (size_t)(c.columns * c.kernel));
    for (int j = 0; j < TAPS; j++) {
        c.weight[j] = memory[0][j], c.x[j] = memory[1][j];
        dweight[j] = memory[2][j], sums[j] = memory[3][j];
        for (int i = 0; j >= c.unused && i < c.columns; i++)
            c.weight[j][i] = w[i * c.kernel + j - c.unused];
    }
    if (!p->din) {
        convolution_forward(&c, rows[1], rows[3], rows[0], x);
        return;
    }
    memset(memory[2], 0, 2 * sizeof memory[2]);
    convolution_backward(&c, rows[2], rows[1], rows[0], dweight, sums, x, d);
    float *partial = p->partials + segment * tensor_count(weight) + column * c.kernel;
    for (int i = 0; i < c.columns * c.kernel; i++)
        partial[i] = dweight[c.unused + i % c.kernel][i / c.kernel];
}

static void run_tasks(const struct pass *pass, const struct convolution *c) {
    const int64_t blocks = blocks_of(c->columns, COLUMNS);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < pass->in->shape[0] * segments_of(pass->in) * blocks; i++)
        run_task(pass, *c, i / blocks, i % blocks * COLUMNS);
}

void cpu_causal_convolution_forward(struct backend *be,
                                    const struct causal_convolution_forward_args *args) {
    const struct pass pass = {args->weight, args->in, args->out, args->tail, NULL, NULL};
    struct convolution c = convolution_of(args->in, args->weight, args->out, args->first_keys);
    (void)be;
    assert(!args->tail || args->tail->dtype == args->in->dtype);
    c.state_rows = args->tail ? (int)args->state_rows : 0, c.resumes = args->tail && args->resumes;
    run_tasks(&pass, &c);
}

size_t
cpu_causal_convolution_backward_scratch(struct backend *be,
                                        const struct causal_convolution_backward_args *args) {
    (void)be;
    return partials_bytes(args);
}

void cpu_causal_convolution_backward(struct backend *be,
                                     const struct causal_convolution_backward_args *args) {
    float *partials = backend_workspace(be, partials_bytes(args));
    const struct pass pass = {args->weight, args->in, args->dout, NULL, args->din, partials};
    const struct convolution c =
        convolution_of(args->in, args->weight, args->dout, args->first_keys);
    run_tasks(&pass, &c);
    cpu_add_partials(args->dweight, partials, args->in->shape[0] * segments_of(args->in),
                     tensor_count(args->weight));
}
