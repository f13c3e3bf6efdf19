#include "model/optimize/muon.h"

#include <math.h>

static enum dtype iteration_dtype(const struct config *config) {
    static const enum dtype dtypes[] = {[CONFIG_NEWTON_SCHULZ_BF16] = DTYPE_BF16,
                                        [CONFIG_NEWTON_SCHULZ_F32] = DTYPE_F32,
                                        [CONFIG_NEWTON_SCHULZ_F16] = DTYPE_F16};
    return dtypes[config->optimizer.newton_schulz_dtype];
}

static void lay_out(struct muon *muon, struct arena *arena) {
    const enum dtype dtype = iteration_dtype(muon->config);
    const bool apart = dtype == DTYPE_F16;
    const enum dtype given = apart ? DTYPE_F32 : dtype;
    muon->directions = arena_tensor(arena, given, muon->direction_count, 0);
    muon->part = arena_tensor(arena, given, muon->elements, 0);
    muon->iterate = arena_tensor(arena, dtype, apart ? muon->elements : 0, 0);
    muon->product = arena_tensor(arena, DTYPE_F32, muon->elements, 0);
    muon->gram = arena_tensor(arena, dtype, muon->side * muon->side, 0);
    muon->square = arena_tensor(arena, DTYPE_F32, muon->side * muon->side, 0);
}

void muon_open(struct muon *muon, struct backend *be, const struct config *config) {
    struct arena measure = {0};
    muon->be = be, muon->config = config;
    lay_out(muon, &measure);
    muon->bytes = measure.used;
}

int muon_allocate(struct muon *muon, struct error *error) {
    if (muon->bytes == 0) return 0;
    muon->memory = backend_allocate(muon->be, muon->bytes);
    if (!muon->memory)
        return fail(error, "out of memory: Muon needs %zu MiB of scratch\nchoose a smaller model",
                    muon->bytes >> 20);
    lay_out(muon, &(struct arena){muon->memory, 0, muon->bytes});
    return 0;
}

void muon_close(struct muon *muon) {
    if (muon->memory) backend_release(muon->be, muon->memory);
    *muon = (struct muon){0};
}

/* Replaces a matrix [rows, columns] of the dtype of `directions` by its orthogonal factor:
 * Newton-Schulz iteration with the quintic polynomial of Jordan et al. 2024:
 *
 *     X = X / |X|;   G = X X';   X = a X + (b G + c G G) X
 *
 * or with G = X' X from the right, if X has more rows than columns. */
static void orthogonalize(const struct muon *muon, const struct tensor *matrix) {
    static const float a = 3.4445f, b = -4.7750f, c = 2.0315f, epsilon = 1e-7f;
    struct backend *be = muon->be;
    int64_t rows = tensor_rows(matrix), columns = tensor_columns(matrix);
    const bool wide = rows <= columns;
    int64_t side = wide ? rows : columns;
    struct tensor gram = tensor_view(&muon->gram, side, side);
    struct tensor square = tensor_view(&muon->square, side, side);
    struct tensor product = tensor_view(&muon->product, rows, columns);
    const bool apart = matrix->dtype != muon->iterate.dtype;
    struct tensor x = apart ? tensor_view(&muon->iterate, rows, columns) : *matrix;
    OP(be, normalize, .out = &x, .in = matrix, .epsilon = epsilon);
    for (int64_t i = 0; i < muon->config->optimizer.newton_schulz_steps; i++) {
        OP(be, matmul, .out = &gram, .a = &x, .b = &x, .transpose_a = !wide, .transpose_b = wide);
        OP(be, matmul, .out = &square, .a = &gram, .b = &gram);
        OP(be, weighted_sum, .out = &gram, .a = &gram, .b = &square, .columns = side, .alpha = b,
           .beta = c);
        OP(be, matmul, .out = &product, .a = wide ? &gram : &x, .b = wide ? &x : &gram);
        OP(be, weighted_sum, .out = &x, .a = &x, .b = &product, .columns = columns, .alpha = a,
           .beta = 1);
    }
    if (apart) OP(be, weighted_sum, .out = matrix, .a = &x, .columns = columns, .alpha = 1);
}

static double lr_factor(const struct config *config, int64_t inputs, int64_t outputs) {
    double in = (double)inputs, out = (double)outputs;
    if (config->optimizer.scale == CONFIG_SCALE_ORIGINAL) return sqrt(fmax(1, out / in));
    return 0.2 * sqrt(fmax(in, out));
}

/* Orthogonalizes q, k and v of a matrix [in, q | k | v] each, and multiplies them by their factors.
 */
static void orthogonalize_qkv(const struct muon *muon, const struct tensor *matrix,
                              const struct model_shape *s) {
    const int64_t widths[] = {shape_q(s), shape_kv(s), shape_kv(s)};
    int64_t rows = tensor_rows(matrix), first = 0;
    for (int i = 0; i < 3; first += widths[i++]) {
        struct tensor part = tensor_view(&muon->part, rows, widths[i]);
        OP(muon->be, weighted_sum, .out = &part, .a = matrix, .a_first = first,
           .columns = widths[i], .alpha = 1);
        orthogonalize(muon, &part);
        OP(muon->be, weighted_sum, .out = matrix, .out_first = first, .a = &part,
           .columns = widths[i], .alpha = (float)lr_factor(muon->config, rows, widths[i]));
    }
}

bool muon_splits_qkv(const struct parameter *parameter, const struct model_shape *shape) {
    return parameter->site == SITE_QKV && !shape->weights_out_in && !parameter->adapter;
}

double muon_direction(const struct muon *muon, const struct tensor *matrix,
                      const struct parameter *parameter, const struct model_shape *shape) {
    const bool out_in = shape->weights_out_in || parameter->adapter;
    int64_t rows = tensor_rows(matrix), columns = tensor_columns(matrix);
    if (muon_splits_qkv(parameter, shape)) {
        orthogonalize_qkv(muon, matrix, shape);
        return 1;
    }
    orthogonalize(muon, matrix);
    return lr_factor(muon->config, out_in ? columns : rows, out_in ? rows : columns);
}
