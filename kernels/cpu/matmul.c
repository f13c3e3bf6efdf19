/* Matrix products: of a few rows with weights in 16 bits by few_rows.h, of others by oneDNN if it
 * has a kernel for the dtypes, else panels of the same product on operands widened to fp32
 * (widened.h). */
#include <assert.h>
#include <stdio.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/widened.h"

/* Returns the library's product of the operands as they are, or NULL if they have to be widened. */
static struct cpu_product *find_direct(struct backend *be, const struct matmul_args *args,
                                       bool planning) {
    assert(dtype_is_f8(args->a->dtype) == dtype_is_f8(args->b->dtype));
    assert(matmul_scales(args) || !dtype_is_f8(args->a->dtype));
    if (args->a->dtype != args->b->dtype || matmul_scales(args)) return NULL;
    return cpu_products_find(be, product_shape_of(args), planning);
}

static bool multiply(struct backend *be, const struct matmul_args *args) {
    assert(!args->b_stored || few_rows_fits(args));
    if (few_rows_fits(args)) {
        few_rows_multiply(args, backend_workspace(be, few_rows_scratch(be, args)));
        return true;
    }
    const struct cpu_product *product = find_direct(be, args, false);
    if (!product)
        return widened_multiply(be, args, backend_workspace(be, widened_scratch(be, args, false)));
    void *scratch = backend_workspace(be, library_scratch_bytes(product));
    return cpu_products_run(be->state, product, matmul_sum(args)->data, args->a->data,
                            args->b->data, args->bias ? args->bias->data : NULL, scratch);
}

void cpu_matmul(struct backend *be, const struct matmul_args *args) {
    matmul_check_epilogue(args);
    if (!multiply(be, args)) {
        struct product_shape shape = product_shape_of(args);
        snprintf(be->failure.text, sizeof be->failure.text,
                 "oneDNN failed on a matrix product of %lld x %lld x %lld", (long long)shape.m,
                 (long long)shape.n, (long long)shape.k);
        return;
    }
    switch (args->epilogue) {
    case MATMUL_STORE: return;
    case MATMUL_GELU:
        cpu_gelu_forward(be, ARGS(gelu_forward, .out = args->out, .in = args->pre_activation,
                                  .track_amax = args->track_amax));
        return;
    case MATMUL_DGELU:
        cpu_gelu_backward(be, ARGS(gelu_backward, .din = args->out, .dout = args->out,
                                   .in = args->pre_activation, .track_amax = args->track_amax,
                                   .column_sums = args->column_sums));
    }
}

size_t cpu_matmul_scratch(struct backend *be, const struct matmul_args *args) {
    if (few_rows_fits(args)) return few_rows_scratch(be, args);
    const struct cpu_product *product = find_direct(be, args, true);
    return product ? library_scratch_bytes(product) : widened_scratch(be, args, true);
}
