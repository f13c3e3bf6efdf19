/* Matrix products: oneDNN where it has a kernel for the dtypes, else the same product on operands
 * widened to fp32. So fp16, bf16 on a processor without bf16 instructions, and products of unlike
 * dtypes all work, at fp32 speed; only the rounding of what is stored differs. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "kernels/cpu/cpu.h"
#include "kernels/arena.h"
#include "kernels/cpu/onednn.h"

struct product_entry {
    struct onednn_shape key;
    struct onednn_product *value; /* NULL: the library has none, widen */
};

struct cpu_products {
    struct onednn *library;
    struct product_entry *prepared; /* stb_ds map */
    bool native_bf16;
};

static struct onednn_product *find(struct cpu_products *products, struct onednn_shape shape) {
    ptrdiff_t at = hmgeti(products->prepared, shape);
    if (at >= 0) return products->prepared[at].value;
    struct onednn_product *product = onednn_prepare(products->library, &shape);
    hmput(products->prepared, shape, product);
    return product;
}

/* With AVX-512 alone the library emulates bf16, at best at the speed of fp32. */
static bool has_bf16_instructions(void) {
#if defined __x86_64__
    return __builtin_cpu_supports("avx512bf16");
#else
    return true;
#endif
}

struct cpu_products *cpu_products_open(char *error) {
    struct cpu_products *products = calloc(1, sizeof *products);
    if (products) products->library = onednn_open();
    if (!products || !products->library) {
        snprintf(error, BACKEND_ERROR_MAX, "oneDNN cannot be started on this processor");
        free(products);
        return NULL;
    }
    struct onednn_shape probe = {64, 64, 64, DTYPE_BF16, DTYPE_BF16, -1, 0, 0, 0};
    products->native_bf16 = has_bf16_instructions() && find(products, probe) != NULL;
    return products;
}

void cpu_products_close(struct cpu_products *products) {
    for (ptrdiff_t i = 0; i < hmlen(products->prepared); i++)
        onednn_discard(products->prepared[i].value);
    hmfree(products->prepared);
    onednn_close(products->library);
    free(products);
}

void cpu_products_describe(char *text, size_t size) {
    onednn_describe(text, size);
}

bool cpu_products_native_bf16(const struct cpu_products *products) {
    return products->native_bf16;
}

static struct onednn_shape shape_of(const struct matmul_args *args) {
    int64_t a_rows = tensor_rows(args->a), a_columns = tensor_columns(args->a);
    int64_t b_rows = tensor_rows(args->b), b_columns = tensor_columns(args->b);
    const struct tensor *out = args->gelu_in ? args->gelu_in : args->out;
    struct onednn_shape shape;
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
    assert(!(args->accumulate && (args->gelu_in || args->dgelu_in)));
    return shape;
}

/* What one product needs in the workspace: where the operands are as they are, only the library's
 * scratch; else fp32 copies of what is not fp32. All places are multiples of ARENA_ALIGNMENT. */
struct layout {
    struct onednn_product *product;
    struct onednn_shape shape;
    float *a, *b, *bias, *out; /* NULL: used in place */
    void *scratch;
    size_t bytes;
};

static float *copy_place(struct arena *arena, const struct tensor *tensor) {
    if (!tensor || tensor->dtype == DTYPE_F32) return NULL;
    return arena_take(arena, (size_t)tensor_count(tensor) * sizeof(float));
}

static struct layout lay_out(struct backend *be, const struct matmul_args *args, bool measuring) {
    struct cpu_products *products = be->state;
    struct layout layout = {.shape = shape_of(args)};
    struct arena arena = {measuring ? NULL : be->workspace, 0, be->workspace_bytes};
    if (args->a->dtype == args->b->dtype) layout.product = find(products, layout.shape);
    if (!layout.product) {
        layout.shape.in = layout.shape.out = DTYPE_F32;
        if (args->bias) layout.shape.bias = DTYPE_F32;
        layout.product = find(products, layout.shape);
        layout.a = copy_place(&arena, args->a);
        layout.b = copy_place(&arena, args->b);
        layout.bias = copy_place(&arena, args->bias);
        layout.out = copy_place(&arena, args->gelu_in ? args->gelu_in : args->out);
    }
    if (layout.product) layout.scratch = arena_take(&arena, onednn_scratch_bytes(layout.product));
    layout.bytes = arena.used;
    return layout;
}

static const void *operand(struct backend *be, const struct tensor *tensor, float *copy) {
    if (!tensor || !copy) return tensor ? tensor->data : NULL;
    struct tensor widened = *tensor;
    widened.dtype = DTYPE_F32;
    widened.data = copy;
    cpu_cast(be, &(const struct cast_args){.out = &widened, .in = tensor});
    return copy;
}

static void multiply(struct backend *be, const struct matmul_args *args) {
    struct layout layout = lay_out(be, args, false);
    const struct tensor *out = args->gelu_in ? args->gelu_in : args->out;
    const void *a = operand(be, args->a, layout.a), *b = operand(be, args->b, layout.b);
    const void *bias = operand(be, args->bias, layout.bias);
    if (args->accumulate && layout.out) operand(be, out, layout.out);
    void *result = layout.out ? layout.out : out->data;
    struct cpu_products *products = be->state;
    if (!layout.product ||
        !onednn_run(products->library, layout.product, result, a, b, bias, layout.scratch)) {
        snprintf(be->failure, sizeof be->failure,
                 "oneDNN failed on a matrix product of %lld x %lld x %lld",
                 (long long)layout.shape.m, (long long)layout.shape.n, (long long)layout.shape.k);
        return;
    }
    if (!layout.out) return;
    struct tensor wide = *out;
    wide.dtype = DTYPE_F32;
    wide.data = layout.out;
    cpu_cast(be, &(const struct cast_args){.out = out, .in = &wide});
}

void cpu_matmul(struct backend *be, const struct matmul_args *args) {
    multiply(be, args);
    if (args->gelu_in)
        cpu_gelu_forward(be, &(const struct gelu_forward_args){args->out, args->gelu_in});
    if (args->dgelu_in)
        cpu_gelu_backward(be,
                          &(const struct gelu_backward_args){args->out, args->out, args->dgelu_in});
    if (args->dbias) cpu_column_sums(args->dbias, args->b);
}

void cpu_matmul_plan(struct backend *be, const struct matmul_args *args) {
    backend_reserve(be, lay_out(be, args, true).bytes);
}
