/* Matrix products: oneDNN where it has a kernel for the dtypes, else the same product on operands
 * widened to fp32. So fp16, bf16 on a processor without fast bf16 instructions, and products of
 * unlike dtypes all work, at nearly fp32 speed; only the rounding of what is stored differs. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "kernels/arena.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/products.h"

static struct product_shape shape_of(const struct matmul_args *args) {
    int64_t a_rows = tensor_rows(args->a), a_columns = tensor_columns(args->a);
    int64_t b_rows = tensor_rows(args->b), b_columns = tensor_columns(args->b);
    const struct tensor *out = args->gelu_in ? args->gelu_in : args->out;
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
    assert(!(args->accumulate && (args->gelu_in || args->dgelu_in)));
    return shape;
}

/* What one product needs in the workspace: where the operands are as they are, only the library's
 * scratch; else fp32 copies of what is not fp32. All places are multiples of ARENA_ALIGNMENT. */
struct layout {
    struct cpu_product *product;
    struct product_shape shape;
    bool widens;
    float *a, *b, *bias, *out; /* NULL: used in place */
    void *scratch;
    size_t bytes;
};

static float *copy_place(struct arena *arena, const struct tensor *tensor) {
    if (!tensor || tensor->dtype == DTYPE_F32) return NULL;
    return arena_take(arena, (size_t)tensor_count(tensor) * sizeof(float));
}

/* The places in memory; without it, only the bytes. */
static void place(struct layout *layout, const struct matmul_args *args, void *memory) {
    struct arena arena = {memory, 0, layout->bytes};
    if (layout->widens) {
        layout->a = copy_place(&arena, args->a);
        layout->b = copy_place(&arena, args->b);
        layout->bias = copy_place(&arena, args->bias);
        layout->out = copy_place(&arena, args->gelu_in ? args->gelu_in : args->out);
    }
    if (layout->product)
        layout->scratch = arena_take(&arena, library_scratch_bytes(layout->product));
    layout->bytes = arena.used;
}

static struct layout lay_out(struct backend *be, const struct matmul_args *args, bool planning) {
    struct cpu_products *products = be->state;
    struct layout layout = {.shape = shape_of(args)};
    if (args->a->dtype == args->b->dtype)
        layout.product = cpu_products_find(products, layout.shape, planning);
    layout.widens = !layout.product;
    if (layout.widens) {
        layout.shape.in = layout.shape.out = DTYPE_F32;
        if (args->bias) layout.shape.bias = DTYPE_F32;
        layout.product = cpu_products_find(products, layout.shape, planning);
    }
    place(&layout, args, NULL);
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
    place(&layout, args, backend_workspace(be, layout.bytes));
    const struct tensor *out = args->gelu_in ? args->gelu_in : args->out;
    const void *a = operand(be, args->a, layout.a), *b = operand(be, args->b, layout.b);
    const void *bias = operand(be, args->bias, layout.bias);
    if (args->accumulate && layout.out) operand(be, out, layout.out);
    void *result = layout.out ? layout.out : out->data;
    struct cpu_products *products = be->state;
    if (!layout.product ||
        !cpu_products_run(products, layout.product, result, a, b, bias, layout.scratch)) {
        snprintf(be->failure.text, sizeof be->failure.text,
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

size_t cpu_matmul_scratch(struct backend *be, const struct matmul_args *args) {
    return lay_out(be, args, true).bytes;
}
