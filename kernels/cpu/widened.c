#include "kernels/cpu/widened.h"

#include <assert.h>
#include <string.h>

#include "kernels/arena.h"
#include "kernels/cpu/cpu.h"

enum { M, N, K, DIMENSIONS };

enum {
    PANEL_FLOATS = 2 << 20, /* size of all copies of a panel, about 8 MiB */
    PANEL_MULTIPLE = 64,    /* granularity of the dimension that is cut */
    COLUMN_BLOCK = 4096     /* elements of a row that a thread copies at a time */
};

/* Part of a product: a range of each dimension, which is partial in at most one. */
struct panel {
    int64_t first[DIMENSIONS], count[DIMENSIONS];
};

/* Division of a product into panels, along one dimension. */
struct cut {
    int dimension;
    int64_t whole[DIMENSIONS]; /* sizes of the product */
    int64_t size;              /* size of a panel along the dimension; the last may be smaller */
};

/* Part of a tensor viewed as rows x columns. */
struct region {
    const struct tensor *tensor;
    int64_t row, rows, column, columns;
};

struct product_shape product_shape_of(const struct matmul_args *args) {
    int64_t a_rows = tensor_rows(args->a), a_columns = tensor_columns(args->a);
    int64_t b_rows = tensor_rows(args->b), b_columns = tensor_columns(args->b);
    const struct tensor *out = matmul_sum(args);
    struct product_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.m = args->transpose_a ? a_columns : a_rows;
    shape.k = args->transpose_a ? a_rows : a_columns;
    shape.n = args->transpose_b ? b_rows : b_columns;
    shape.in = args->a->dtype;
    shape.out = out->dtype;
    shape.bias = args->bias ? (int32_t)args->bias->dtype : -1;
    shape.transpose_a = args->transpose_a;
    shape.transpose_b = args->transpose_b;
    shape.accumulate = args->accumulate;
    assert(shape.k == (args->transpose_b ? b_columns : b_rows));
    assert(tensor_rows(out) == shape.m && tensor_columns(out) == shape.n);
    assert(matmul_scales_sums(args));
    return shape;
}

/* The copies of a panel grow with its size, except that of the uncut operand. */
static struct cut cut_of(const struct matmul_args *args) {
    struct product_shape s = product_shape_of(args);
    struct cut cut = {M, {s.m, s.n, s.k}, 0};
    for (int i = 1; i < DIMENSIONS; i++)
        if (cut.whole[i] > cut.whole[cut.dimension]) cut.dimension = i;
    int64_t longest = cut.whole[cut.dimension], across = s.m + s.n + s.k - longest;
    int64_t fit = PANEL_FLOATS / (across ? across : 1);
    if (fit < PANEL_MULTIPLE) fit = PANEL_MULTIPLE;
    int64_t panels = longest ? blocks_of(longest, fit) : 1;
    cut.size = round_up(blocks_of(longest, panels), PANEL_MULTIPLE);
    return cut;
}

static struct panel panel_of(const struct cut *cut, int64_t first) {
    struct panel panel = {{0}, {cut->whole[M], cut->whole[N], cut->whole[K]}};
    panel.first[cut->dimension] = first;
    panel.count[cut->dimension] = block_length(first, cut->whole[cut->dimension], cut->size);
    return panel;
}

static struct region region_of(const struct tensor *tensor, const struct panel *panel, int rows,
                               int columns) {
    return (struct region){tensor, panel->first[rows], panel->count[rows], panel->first[columns],
                           panel->count[columns]};
}

/* Operands with scales are multiplied without them; bf16 represents them as exactly as fp32. */
static enum dtype operand_dtype(const struct backend *be, const struct matmul_args *args) {
    return matmul_scales(args) && be->device.native[DTYPE_BF16] ? DTYPE_BF16 : DTYPE_F32;
}

/* ---- copies */

static bool is_whole_rows(const struct region *r) {
    return r->columns == tensor_columns(r->tensor);
}

static void *region_data(const struct region *r) {
    return (char *)r->tensor->data +
           (size_t)(r->row * tensor_columns(r->tensor)) * dtype_bytes(r->tensor->dtype);
}

/* Copies n values of a row to dense, as fp32 or, exactly, as bf16. */
static void load(void *dense, enum dtype dtype, size_t to, const struct tensor *t, int64_t at,
                 int64_t n) {
    float buffer[COLUMN_BLOCK];
    float *target = dtype == DTYPE_F32 ? (float *)dense + to : buffer;
    const float *values = dtype_widen(target, t->data, t->dtype, (size_t)at, (size_t)n);
    if (values != target || dtype != DTYPE_F32) dtype_store(dense, dtype, to, values, (size_t)n);
}

enum direction { LOAD, STORE };

/* Copies between the region and dense, which has its values row by row in `dtype`. */
static void copy_region(const struct region *r, void *dense, enum dtype dtype,
                        enum direction direction) {
    int64_t stride = tensor_columns(r->tensor), rows = r->rows, columns = r->columns;
    if (is_whole_rows(r)) columns *= rows, rows = 1; /* one long row, copied in equal pieces */
    const struct tensor *t = r->tensor;
#pragma omp parallel for schedule(static) collapse(2)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t block = 0; block < blocks_of(columns, COLUMN_BLOCK); block++) {
            int64_t c = block * COLUMN_BLOCK, n = block_length(c, columns, COLUMN_BLOCK);
            int64_t at = (r->row + row) * stride + r->column + c;
            size_t index = (size_t)(row * columns + c);
            if (direction == LOAD) load(dense, dtype, index, t, at, n);
            else
                dtype_store(t->data, t->dtype, (size_t)at, (const float *)dense + index, (size_t)n);
        }
}

/* Finishes n sums of a row of out, from column c on: scales them, adds bias and out, and stores
 * them. */
static void finish_row(float *sums, const struct matmul_args *args, const struct tensor *out,
                       int64_t row, int64_t c, int64_t n) {
    float buffer[COLUMN_BLOCK];
    const float *a_scales = args->a_scales->data, *b_scales = args->b_scales->data;
    float scale = a_scales[tensor_count(args->a_scales) > 1 ? row : 0];
    int64_t at = row * tensor_columns(out) + c;
    if (tensor_count(args->b_scales) > 1)
        for (int64_t i = 0; i < n; i++) sums[i] *= scale * b_scales[c + i];
    else
        for (int64_t i = 0; i < n; i++) sums[i] *= scale * b_scales[0];
    if (args->bias) {
        const float *bias =
            dtype_widen(buffer, args->bias->data, args->bias->dtype, (size_t)c, (size_t)n);
        for (int64_t i = 0; i < n; i++) sums[i] += bias[i];
    }
    if (args->accumulate) {
        const float *old = dtype_widen(buffer, out->data, out->dtype, (size_t)at, (size_t)n);
        for (int64_t i = 0; i < n; i++) sums[i] += old[i];
    }
    dtype_store(out->data, out->dtype, (size_t)at, sums, (size_t)n);
}

/* Does the same for a whole region of sums. */
static void store_scaled(const struct region *r, float *dense, const struct matmul_args *args) {
    int64_t blocks = blocks_of(r->columns, COLUMN_BLOCK);
#pragma omp parallel for schedule(static) collapse(2)
    for (int64_t row = 0; row < r->rows; row++)
        for (int64_t block = 0; block < blocks; block++) {
            int64_t c = block * COLUMN_BLOCK, n = block_length(c, r->columns, COLUMN_BLOCK);
            finish_row(dense + row * r->columns + c, args, r->tensor, r->row + row, r->column + c,
                       n);
        }
}

/* ---- panels */

/* Operands, numbered by the dimension that they lack: the operand with the number of the cut
 * dimension is whole. */
enum { B = M, A = N, OUT = K };

struct operands {
    struct region regions[DIMENSIONS]; /* indexed by A, B and OUT */
    struct product_shape shape;
};

/* Scratch memory of a panel: its copies, NULL for operands used in place. */
struct panel_memory {
    void *copy[DIMENSIONS];
    float *bias;
    void *library;
    size_t bytes;
};

/* The first panel of K includes the bias and the accumulated output; the others add to it. If sums
 * are scaled, both are added after the last panel. */
static struct operands operands_of(const struct matmul_args *args, const struct panel *panel,
                                   enum dtype in) {
    struct operands operands = {.shape = product_shape_of(args)};
    struct product_shape *s = &operands.shape;
    operands.regions[A] =
        region_of(args->a, panel, args->transpose_a ? K : M, args->transpose_a ? M : K);
    operands.regions[B] =
        region_of(args->b, panel, args->transpose_b ? N : K, args->transpose_b ? K : N);
    operands.regions[OUT] = region_of(matmul_sum(args), panel, M, N);
    s->m = panel->count[M], s->n = panel->count[N], s->k = panel->count[K];
    s->in = (int32_t)in;
    s->out = DTYPE_F32;
    if (args->bias) s->bias = DTYPE_F32;
    if (matmul_scales(args)) s->bias = -1, s->accumulate = false;
    if (panel->first[K] == 0) return operands;
    s->bias = -1;
    s->accumulate = true;
    return operands;
}

static void *take_copy(struct arena *arena, const struct operands *operands, int operand,
                       bool scaled) {
    const struct region *r = &operands->regions[operand];
    enum dtype dtype = operand == OUT ? DTYPE_F32 : (enum dtype)operands->shape.in;
    bool in_place = r->tensor->dtype == dtype && is_whole_rows(r) && !(operand == OUT && scaled);
    if (in_place) return NULL;
    return arena_take(arena, (size_t)(r->rows * r->columns) * dtype_bytes(dtype));
}

/* The copy of the whole operand comes first, at the same address for all panels. */
static struct panel_memory lay_out_panel(const struct operands *operands, int cut,
                                         const struct matmul_args *args,
                                         const struct cpu_product *product, void *base) {
    struct panel_memory memory;
    struct arena arena = {base, 0, SIZE_MAX};
    for (int i = 0; i < DIMENSIONS; i++) {
        int operand = (cut + i) % DIMENSIONS;
        memory.copy[operand] = take_copy(&arena, operands, operand, matmul_scales(args));
    }
    memory.bias = NULL;
    if (operands->shape.bias >= 0 && args->bias->dtype != DTYPE_F32)
        memory.bias = arena_take(&arena, (size_t)tensor_count(args->bias) * sizeof(float));
    memory.library = product ? arena_take(&arena, library_scratch_bytes(product)) : NULL;
    memory.bytes = arena.used;
    return memory;
}

/* Panels differ in size and in their operations: the first, the middle ones, and the last. */
size_t widened_scratch(struct backend *be, const struct matmul_args *args, bool planning) {
    struct cut cut = cut_of(args);
    int64_t longest = cut.whole[cut.dimension], last = blocks_of(longest, cut.size) - 1;
    const int64_t kinds[] = {0, 1, last};
    size_t bytes = 0;
    for (int i = 0; i < 3; i++) {
        if (kinds[i] > last || (i > 0 && kinds[i] == kinds[i - 1])) continue;
        struct panel panel = panel_of(&cut, kinds[i] * cut.size);
        struct operands operands = operands_of(args, &panel, operand_dtype(be, args));
        const struct cpu_product *product = cpu_products_find(be, operands.shape, planning);
        size_t needed = lay_out_panel(&operands, cut.dimension, args, product, NULL).bytes;
        if (needed > bytes) bytes = needed;
    }
    return bytes;
}

/* Returns the region in that dtype: in place, or its copy, which is filled unless it is ready. */
static void *widen(const struct region *r, void *copy, enum dtype dtype, bool ready) {
    if (!copy) return region_data(r);
    if (!ready) copy_region(r, copy, dtype, LOAD);
    return copy;
}

/* The sum over panels of K stays in its copy until the last panel. */
static bool multiply_panel(struct backend *be, const struct matmul_args *args,
                           const struct cut *cut, int64_t at, void *scratch) {
    struct panel panel = panel_of(cut, at);
    enum dtype in = operand_dtype(be, args);
    struct operands operands = operands_of(args, &panel, in);
    const struct cpu_product *product = cpu_products_find(be, operands.shape, false);
    struct panel_memory p = lay_out_panel(&operands, cut->dimension, args, product, scratch);
    bool first_of_sum = panel.first[K] == 0;
    bool last_of_sum = panel.first[K] + panel.count[K] == cut->whole[K];
    bool adds = args->accumulate && first_of_sum && !matmul_scales(args);
    const void *a = widen(&operands.regions[A], p.copy[A], in, at > 0 && cut->dimension == A);
    const void *b = widen(&operands.regions[B], p.copy[B], in, at > 0 && cut->dimension == B);
    float *out = widen(&operands.regions[OUT], p.copy[OUT], DTYPE_F32, !adds);
    const float *bias = NULL;
    if (operands.shape.bias >= 0) {
        struct region all = {args->bias, 0, 1, 0, tensor_count(args->bias)};
        bias = (const float *)widen(&all, p.bias, DTYPE_F32, false) + panel.first[N];
    }
    if (!product || !cpu_products_run(be->state, product, out, a, b, bias, p.library)) return false;
    if (last_of_sum && matmul_scales(args)) store_scaled(&operands.regions[OUT], out, args);
    else if (p.copy[OUT] && last_of_sum) copy_region(&operands.regions[OUT], out, DTYPE_F32, STORE);
    return true;
}

bool widened_multiply(struct backend *be, const struct matmul_args *args, void *scratch) {
    struct cut cut = cut_of(args);
    for (int64_t at = 0; at < cut.whole[cut.dimension]; at += cut.size)
        if (!multiply_panel(be, args, &cut, at, scratch)) return false;
    return true;
}
