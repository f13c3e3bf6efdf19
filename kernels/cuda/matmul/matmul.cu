/* Matrix products: cuBLASLt with the epilogues that it can fuse, and our own passes for the rest.
 *
 * The library multiplies operands of one dtype, and stores that dtype or fp32. Its bias, and the
 * input of a fused GELU, have the dtype of the output. The library does not support:
 *
 *     operands of two dtypes           both are copied to fp32 first, which is exact
 *     codes that are not [M, K] and    they are transposed first
 *     [N, K] in memory
 *     codes on GPUs that do not        both are copied to bf16 first, which is exact
 *     multiply them, or of odd sizes
 *     scales of blocks in our order    they are arranged first (matmul_blocks.h)
 *     scales of rows, columns or bf16  the product is fp32; store_kernel multiplies by the scales
 *     a bias of a wider dtype than     the product is fp32, in the workspace; store_kernel adds
 *     out, or fp32 to 16 bit           the bias and rounds, once
 *     gelu                             a pass from pre_activation, after the product
 *     gelu'                            a pass in place, on the product rounded to out, with its
 *                                      column sums
 *     column sums after a fused gelu'  a separate pass
 *
 * matmul_plan.h plans which of these the library does. */
#include <stdio.h>

#include "kernels/cuda/matmul/matmul_blocks.h"
#include "kernels/cuda/matmul/matmul_codes.h"
#include "kernels/cuda/matmul/matmul_plan.h"
#include "kernels/cuda/matmul/matmul_store.h"

static struct sum_scales scales_of(const struct matmul_args *args) {
    return {(const float *)args->a_scales->data, (const float *)args->b_scales->data,
            tensor_count(args->a_scales) > 1, tensor_count(args->b_scales) > 1};
}

/* blocks: NULL but for codes in blocks. */
static void copy_in(struct backend *be, const struct tensor *copy, const struct tensor *from,
                    const struct matmul_blocks *blocks) {
    struct cast_args args = {copy, from, false};
    if (copy->data == from->data) return;
    if (!dtype_is_quantized(from->dtype)) {
        cuda_cast(be, &args);
    } else if (dtype_is_quantized(copy->dtype)) {
        cuda_transpose_codes(be, copy, from);
    } else if (blocks) {
        struct dequantize_blocks_args values = {copy, from, &blocks->scales, blocks->format};
        cuda_dequantize_blocks(be, &values);
    } else {
        cuda_widen_codes(be, copy, from);
    }
}

static void arrange_scales(struct backend *be, const struct matmul_args *args,
                           const struct product_key *key, const struct matmul_buffers *at) {
    cuda_arrange_block_scales(be, at->a_scale, args->a_blocks, (enum product_scale)key->a_scale,
                              args->transpose_a, key->m, key->k);
    cuda_arrange_block_scales(be, at->b_scale, args->b_blocks, (enum product_scale)key->b_scale,
                              !args->transpose_b, key->n, key->k);
    if (at->alpha)
        cuda_multiply_tensor_scales(be, at->alpha, (const float *)args->a_scales->data,
                                    (const float *)args->b_scales->data, key->accumulate);
}

static cublasStatus_t multiply(struct backend *be, const struct matmul_args *args,
                               const struct matmul_plan *plan, const struct matmul_buffers *at) {
    const struct tensor *aux = args->pre_activation;
    struct product_memory memory = {};
    memory.out = at->result.data;
    memory.a = at->a.data, memory.b = at->b.data;
    memory.a_scale = at->a_scale, memory.b_scale = at->b_scale, memory.alpha = at->alpha;
    if (plan->product.key.a_scale == PRODUCT_TENSOR) {
        memory.a_scale = args->a_scales->data;
        memory.b_scale = args->b_scales->data;
    }
    memory.vector = at->bias.data, memory.aux = aux ? aux->data : NULL;
    memory.workspace = at->library;
    return product_run(cuda_state(be)->products, &plan->product, &memory);
}

/* Runs the operations that the library has not fused. */
static void finish(struct backend *be, const struct matmul_args *args,
                   const struct matmul_plan *plan, const struct matmul_buffers *at) {
    const struct tensor *sum = matmul_sum(args);
    const struct tensor *bias = plan->fused & FUSE_BIAS ? NULL : args->bias;
    struct sum_scales scales = {};
    if (cuda_matmul_scales_afterwards(args, plan->as_codes)) scales = scales_of(args);
    if (at->in_workspace || bias || scales.a)
        cuda_matmul_store(be, sum, (const float *)at->result.data, scales, bias,
                          args->accumulate && at->in_workspace);
    if (args->epilogue == MATMUL_GELU && !(plan->fused & FUSE_GELU)) {
        struct gelu_forward_args gelu = {args->out, args->pre_activation, args->track_amax, NULL,
                                         false};
        cuda_gelu_forward(be, &gelu);
    }
    if (args->epilogue == MATMUL_DGELU && !(plan->fused & FUSE_DGELU)) {
        struct gelu_backward_args gelu = {args->out,        args->out,         args->pre_activation,
                                          args->track_amax, args->column_sums, NULL};
        cuda_gelu_derivative(be, &gelu, at->sums);
    } else if (args->column_sums) {
        struct column_sums_args sums = {args->column_sums, args->out};
        cuda_sum_columns(be, &sums, at->sums);
    }
}

/* As matmul_run (matmul_plan.h). */
static cublasStatus_t run(struct backend *be, const struct matmul_args *args,
                          const struct matmul_plan *plan, void *workspace, enum matmul_part part) {
    struct matmul_buffers at = cuda_matmul_assign(be, args, plan, workspace);
    if (part == MATMUL_LIBRARY) return multiply(be, args, plan, &at);
    copy_in(be, &at.a, args->a, args->a_blocks);
    copy_in(be, &at.b, args->b, args->b_blocks);
    if (product_in_blocks(&plan->product.key)) arrange_scales(be, args, &plan->product.key, &at);
    if (plan->fused & FUSE_BIAS) copy_in(be, &at.bias, args->bias, NULL);
    cublasStatus_t status = multiply(be, args, plan, &at);
    if (status == CUBLAS_STATUS_SUCCESS) finish(be, args, plan, &at);
    return status;
}

size_t cuda_matmul_scratch(struct backend *be, const struct matmul_args *args) {
    const struct matmul_plan *plan = cuda_matmul_plan(be, args, true, run);
    return plan ? plan->bytes : 0;
}

void cuda_matmul(struct backend *be, const struct matmul_args *args) {
    const struct matmul_plan *plan = cuda_matmul_plan(be, args, false, run);
    if (!plan) return;
    cublasStatus_t status = run(be, args, plan, backend_workspace(be, plan->bytes), MATMUL_WHOLE);
    const struct product_key *key = &plan->product.key;
    if (status && !be->failure.text[0])
        snprintf(be->failure.text, sizeof be->failure.text,
                 "CUDA: cuBLASLt failed on a matrix product of %lld x %lld x %lld, %s to %s, "
                 "epilogue %s: %s (status %d)",
                 (long long)key->m, (long long)key->n, (long long)key->k,
                 dtype_name((enum dtype)key->a_in), dtype_name((enum dtype)key->out),
                 epilogue_names[key->epilogue],
                 cuda_state(be)->products->lt.GetStatusString(status), (int)status);
}
