/* Selects the implementation of attention: tensor cores where the tensors allow it, see
 * attention.h, and plain threads for everything else. */
#include <stdio.h>

#include "kernels/cuda/attention.h"

enum { WIDTH_MAX = 256 };

/* True if there is nothing to compute: no rows, or heads too wide, which is an error. */
static bool refused(struct backend *be, const struct attention_shape *shape) {
    if (shape->width > WIDTH_MAX && !be->failure.text[0])
        snprintf(be->failure.text, sizeof be->failure.text,
                 "attention: a head has %lld values, and this GPU code goes up to %d; "
                 "use more heads (n_head) or a smaller n_embd",
                 (long long)shape->width, WIDTH_MAX);
    return shape->width > WIDTH_MAX || shape->batch * shape->sequence * shape->width == 0;
}

static bool forward_on_tensor_cores(const struct backend *be,
                                    const struct attention_forward_args *args,
                                    const struct attention_shape *shape) {
    enum dtype dtype = args->qkv->dtype;
    return dtype != DTYPE_F32 && args->out->dtype == dtype &&
           attention_mma_supports(cuda_state(be), dtype, shape->width);
}

/* True for Hopper's kernels, given tensors that tensor cores support: tensor copies start at
 * multiples of 16 bytes. */
static bool on_warp_groups(const struct backend *be, const struct tensor *qkv,
                           const struct tensor *dout, const struct attention_shape *shape) {
    return (uintptr_t)qkv->data % 16 == 0 && (!dout || (uintptr_t)dout->data % 16 == 0) &&
           attention_wgmma_supports(cuda_state(be), qkv->dtype, shape->width);
}

static bool backward_on_tensor_cores(const struct backend *be,
                                     const struct attention_backward_args *args,
                                     const struct attention_shape *shape) {
    enum dtype dtype = args->qkv->dtype;
    return dtype != DTYPE_F32 && args->out->dtype == dtype && args->dout->dtype == dtype &&
           args->dqkv->dtype == dtype &&
           attention_mma_supports(cuda_state(be), dtype, shape->width);
}

size_t cuda_attention_forward_scratch(struct backend *be,
                                      const struct attention_forward_args *args) {
    struct attention_shape shape = attention_shape(args->qkv, args->heads, args->kv_heads);
    refused(be, &shape); /* reports the error before step 0 */
    return 0;
}

void cuda_attention_forward(struct backend *be, const struct attention_forward_args *args) {
    struct attention_shape shape = attention_shape(args->qkv, args->heads, args->kv_heads);
    if (refused(be, &shape)) return;
    if (!forward_on_tensor_cores(be, args, &shape)) attention_simt_forward(be, args, &shape);
    else if (on_warp_groups(be, args->qkv, NULL, &shape)) attention_wgmma_forward(be, args, &shape);
    else attention_mma_forward(be, args, &shape);
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Returns the larger need of both tensor-core kernels: the choice depends on the tensors'
 * addresses, which are not known yet. */
size_t cuda_attention_backward_scratch(struct backend *be,
                                       const struct attention_backward_args *args) {
    struct attention_shape shape = attention_shape(args->qkv, args->heads, args->kv_heads);
    struct column_sums_args sums = {args->column_sums, args->dqkv};
    if (refused(be, &shape)) return 0;
    if (backward_on_tensor_cores(be, args, &shape)) {
        size_t bytes = attention_mma_backward_bytes(args, &shape);
        if (!attention_wgmma_supports(cuda_state(be), args->qkv->dtype, shape.width)) return bytes;
        return larger(bytes, attention_wgmma_backward_bytes(args, &shape));
    }
    return larger(attention_simt_backward_bytes(&shape),
                  args->column_sums ? cuda_column_sums_scratch(be, &sums) : 0);
}

void cuda_attention_backward(struct backend *be, const struct attention_backward_args *args) {
    struct attention_shape shape = attention_shape(args->qkv, args->heads, args->kv_heads);
    if (refused(be, &shape)) return;
    if (backward_on_tensor_cores(be, args, &shape)) {
        if (on_warp_groups(be, args->qkv, args->dout, &shape))
            attention_wgmma_backward(be, args, &shape);
        else attention_mma_backward(be, args, &shape);
        return;
    }
    attention_simt_backward(be, args, &shape);
    struct column_sums_args sums = {args->column_sums, args->dqkv};
    if (args->column_sums) cuda_column_sums(be, &sums);
}
