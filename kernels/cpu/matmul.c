/* Matrix products: oneDNN if it has a kernel for the dtypes, else panels of the same product on
 * operands widened to fp32 (widened.h). */
#include <assert.h>
#include <stdio.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/widened.h"

/* Returns the library's product of the operands as they are, or NULL if they have to be widened. */
static struct cpu_product *find_direct(struct backend *be, const struct matmul_args *args,
                                       bool planning) {
    assert(dtype_is_quantized(args->a->dtype) == dtype_is_quantized(args->b->dtype));
    if (args->a->dtype != args->b->dtype || matmul_scales(args)) return NULL;
    return cpu_products_find(be->state, product_shape_of(args), planning);
}

static bool multiply(struct backend *be, const struct matmul_args *args) {
    const struct cpu_product *product = find_direct(be, args, false);
    if (!product) {
        void *scratch = backend_workspace(be, widened_scratch(be, args, false));
        return widened_multiply(be, args, scratch);
    }
    const struct tensor *out = args->gelu_in ? args->gelu_in : args->out;
    void *scratch = backend_workspace(be, library_scratch_bytes(product));
    return cpu_products_run(be->state, product, out->data, args->a->data, args->b->data,
                            args->bias ? args->bias->data : NULL, scratch);
}

void cpu_matmul(struct backend *be, const struct matmul_args *args) {
    assert(!args->column_sums || args->dgelu_in);
    assert(!args->track_amax || (matmul_scales(args) && (args->gelu_in || args->dgelu_in)));
    if (!multiply(be, args)) {
        struct product_shape shape = product_shape_of(args);
        snprintf(be->failure.text, sizeof be->failure.text,
                 "oneDNN failed on a matrix product of %lld x %lld x %lld", (long long)shape.m,
                 (long long)shape.n, (long long)shape.k);
        return;
    }
    if (args->gelu_in)
        cpu_gelu_forward(
            be, &(const struct gelu_forward_args){args->out, args->gelu_in, args->track_amax});
    if (args->dgelu_in)
        cpu_gelu_backward(be,
                          &(const struct gelu_backward_args){args->out, args->out, args->dgelu_in,
                                                             args->track_amax, args->column_sums});
}

size_t cpu_matmul_scratch(struct backend *be, const struct matmul_args *args) {
    const struct cpu_product *product = find_direct(be, args, true);
    return product ? library_scratch_bytes(product) : widened_scratch(be, args, true);
}
