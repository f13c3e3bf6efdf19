/* Selects the implementation of attention: tensor cores where the tensors allow it, see
 * attention.h, and plain threads for everything else. */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/flat.h"

/* Copies to shared memory, and stores of whole chunks, are of 16 aligned bytes. */
static bool is_aligned(const struct tensor *tensor) {
    return aligned_to(tensor->data, 16);
}

static bool forward_on_tensor_cores(const struct backend *be,
                                    const struct attention_forward_args *args,
                                    const struct attention_shape *shape) {
    enum dtype dtype = args->qkv->dtype;
    return dtype != DTYPE_F32 && args->out->dtype == dtype && is_aligned(args->qkv) &&
           is_aligned(args->out) && attention_mma_supports(cuda_state(be), dtype, shape->width);
}

/* True if Hopper's kernels can run on tensors that tensor cores can read. */
static bool on_warp_groups(const struct backend *be, enum dtype dtype,
                           const struct attention_shape *shape) {
    return attention_wgmma_supports(cuda_state(be), dtype, shape->width);
}

/* True if tensor cores can compute it, provided the tensors are aligned. */
static bool backward_supported(const struct backend *be, const struct attention_backward_args *args,
                               const struct attention_shape *shape) {
    enum dtype dtype = args->qkv->dtype;
    return dtype != DTYPE_F32 && args->out->dtype == dtype && args->dout->dtype == dtype &&
           args->dqkv->dtype == dtype &&
           attention_mma_supports(cuda_state(be), dtype, shape->width);
}

static bool backward_on_tensor_cores(const struct backend *be,
                                     const struct attention_backward_args *args,
                                     const struct attention_shape *shape) {
    return backward_supported(be, args, shape) && is_aligned(args->qkv) && is_aligned(args->out) &&
           is_aligned(args->dout) && is_aligned(args->dqkv);
}

size_t cuda_attention_forward_scratch(struct backend *be,
                                      const struct attention_forward_args *args) {
    struct attention_shape shape = attention_shape(args->qkv, args->heads, args->kv_heads);
    attention_is_void(be, &shape, "attention"); /* reports the error before step 0 */
    return 0;
}

void cuda_attention_forward(struct backend *be, const struct attention_forward_args *args) {
    struct attention_shape shape = attention_shape(args->qkv, args->heads, args->kv_heads);
    if (attention_is_void(be, &shape, "attention")) return;
    if (!forward_on_tensor_cores(be, args, &shape)) attention_simt_forward(be, args, &shape);
    else if (on_warp_groups(be, args->qkv->dtype, &shape))
        attention_wgmma_forward(be, args, &shape);
    else attention_mma_forward(be, args, &shape);
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Returns the largest need of all kernels that may be chosen: the choice depends on the tensors'
 * addresses, which are not known yet. */
size_t cuda_attention_backward_scratch(struct backend *be,
                                       const struct attention_backward_args *args) {
    struct attention_shape shape = attention_shape(args->qkv, args->heads, args->kv_heads);
    struct column_sums_args sums = {args->column_sums, args->dqkv};
    if (attention_is_void(be, &shape, "attention")) return 0;
    size_t bytes = larger(attention_simt_backward_bytes(&shape),
                          args->column_sums ? cuda_column_sums_scratch(be, &sums) : 0);
    if (!backward_supported(be, args, &shape)) return bytes;
    bytes = larger(bytes, attention_mma_backward_bytes(args, &shape));
    if (!on_warp_groups(be, args->qkv->dtype, &shape)) return bytes;
    return larger(bytes, attention_backward_bytes(args, &shape));
}

void cuda_attention_backward(struct backend *be, const struct attention_backward_args *args) {
    struct attention_shape shape = attention_shape(args->qkv, args->heads, args->kv_heads);
    if (attention_is_void(be, &shape, "attention")) return;
    if (backward_on_tensor_cores(be, args, &shape)) {
        if (on_warp_groups(be, args->qkv->dtype, &shape))
            attention_wgmma_backward(be, args, &shape);
        else attention_mma_backward(be, args, &shape);
        return;
    }
    attention_simt_backward(be, args, &shape);
    struct column_sums_args sums = {args->column_sums, args->dqkv};
    if (args->column_sums) cuda_column_sums(be, &sums);
}
