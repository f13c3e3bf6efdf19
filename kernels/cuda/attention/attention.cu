/* Selects the implementation of attention: tensor cores where the tensors allow it, see
 * attention.h, and plain threads for everything else. */
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/flat.h"

/* Copies to shared memory, and stores of whole chunks, are of 16 aligned bytes. */
static bool is_aligned(const struct tensor *tensor) {
    return aligned_to(tensor->data, 16);
}

static bool forward_on_tensor_cores(const struct backend *be,
                                    const struct attention_forward_args *args,
                                    const struct attention_shape *shape) {
    enum dtype dtype = args->qkv->dtype;
    return args->out->dtype == dtype && is_aligned(args->qkv) && is_aligned(args->out) &&
           attention_mma_supports(cuda_state(be), dtype, args->softcap, shape->width);
}

/* True if Hopper's kernels can run on tensors that tensor cores can read. They have no soft caps,
 * which only Gemma 2 needs. */
static bool on_warp_groups(const struct backend *be, enum dtype dtype, float softcap,
                           const struct attention_shape *shape) {
    return softcap == 0 && attention_wgmma_supports(cuda_state(be), dtype, shape->width);
}

/* True if tensor cores can compute it, provided the tensors are aligned. */
static bool backward_supported(const struct backend *be, const struct attention_backward_args *args,
                               const struct attention_shape *shape) {
    enum dtype dtype = args->qkv->dtype;
    return args->out->dtype == dtype && args->dout->dtype == dtype && args->dqkv->dtype == dtype &&
           attention_mma_supports(cuda_state(be), dtype, args->softcap, shape->width);
}

static bool backward_on_tensor_cores(const struct backend *be,
                                     const struct attention_backward_args *args,
                                     const struct attention_shape *shape) {
    return backward_supported(be, args, shape) && is_aligned(args->qkv) && is_aligned(args->out) &&
           is_aligned(args->dout) && is_aligned(args->dqkv);
}

enum { LIMIT_THREADS = 256 };

/* to[row] = the first key of a row: that of first_keys (optional), or the first one in its window.
 */
static __global__ void __launch_bounds__(LIMIT_THREADS)
    attention_limits_kernel(int32_t *to, const int32_t *first_keys, int rows, int sequence,
                            int window) {
    int row = (int)(blockIdx.x * LIMIT_THREADS + threadIdx.x);
    if (row >= rows) return;
    int first = first_keys ? first_keys[row] : 0, inside = row % sequence - window + 1;
    to[row] = first > inside ? first : inside;
}

/* Returns the window that makes limits necessary, or 0. With a soft cap tensor cores always have
 * limits, so that there are fewer kernels. */
static int64_t limiting_window(int64_t window, float softcap, const struct attention_shape *shape) {
    return window == 0 && softcap != 0 ? shape->sequence : window;
}

/* Returns the bytes of scratch with the first keys of a window, which come after `bytes` of other
 * scratch. */
static size_t with_limits(size_t bytes, const struct attention_shape *shape, int64_t window) {
    if (window == 0) return bytes;
    return round_up((int64_t)bytes, ARENA_ALIGNMENT) +
           (size_t)(shape->batch * shape->sequence) * sizeof(int32_t);
}

/* Returns first_keys, or with a window an array in the scratch, after `bytes` of it: all kernels
 * read limits from an array, and skip the tiles before them. */
static const int32_t *limits(struct backend *be, const int32_t *first_keys, int64_t window,
                             const struct attention_shape *shape, size_t bytes) {
    if (window == 0) return first_keys;
    int64_t rows = shape->batch * shape->sequence;
    int most = (int)(window < shape->sequence ? window : shape->sequence);
    char *scratch = (char *)backend_workspace(be, with_limits(bytes, shape, window));
    int32_t *to = (int32_t *)(scratch + round_up((int64_t)bytes, ARENA_ALIGNMENT));
    LAUNCH(attention_limits_kernel, (unsigned)blocks_of(rows, LIMIT_THREADS), LIMIT_THREADS, 0,
           cuda_state(be)->compute, to, first_keys, (int)rows, (int)shape->sequence, most);
    return to;
}

size_t cuda_attention_forward_scratch(struct backend *be,
                                      const struct attention_forward_args *args) {
    struct attention_shape shape = attention_shape(args->qkv, args->heads, args->kv_heads);
    if (attention_is_void(be, &shape, "attention")) return 0; /* reports the error before step 0 */
    return with_limits(0, &shape, limiting_window(args->window, args->softcap, &shape));
}

void cuda_attention_forward(struct backend *be, const struct attention_forward_args *args) {
    struct attention_shape shape = attention_shape(args->qkv, args->heads, args->kv_heads);
    struct attention_forward_args limited = *args;
    if (attention_is_void(be, &shape, "attention")) return;
    int64_t window = limiting_window(args->window, args->softcap, &shape);
    limited.first_keys = limits(be, args->first_keys, window, &shape, 0);
    bool on_tensor_cores = forward_on_tensor_cores(be, args, &shape);
    if (on_tensor_cores && on_warp_groups(be, args->qkv->dtype, args->softcap, &shape))
        return attention_wgmma_forward(be, &limited, &shape);
    if (on_tensor_cores) attention_mma_forward(be, &limited, &shape);
    else attention_simt_forward(be, &limited, &shape);
    if (args->track_amax) cuda_find_amax(be, args->track_amax, args->out);
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Returns the largest need of all kernels that may be chosen: the choice depends on the tensors'
 * addresses, which are not known yet. */
static size_t backward_bytes(struct backend *be, const struct attention_backward_args *args,
                             const struct attention_shape *shape) {
    struct column_sums_args sums = {args->column_sums, args->dqkv};
    size_t bytes = larger(attention_simt_backward_bytes(shape),
                          args->column_sums ? cuda_column_sums_scratch(be, &sums) : 0);
    if (!backward_supported(be, args, shape)) return bytes;
    bytes = larger(bytes, attention_mma_backward_bytes(args, shape));
    if (!on_warp_groups(be, args->qkv->dtype, args->softcap, shape)) return bytes;
    return larger(bytes, attention_backward_bytes(args, shape));
}

size_t cuda_attention_backward_scratch(struct backend *be,
                                       const struct attention_backward_args *args) {
    struct attention_shape shape = attention_shape(args->qkv, args->heads, args->kv_heads);
    if (attention_is_void(be, &shape, "attention")) return 0;
    return with_limits(backward_bytes(be, args, &shape), &shape,
                       limiting_window(args->window, args->softcap, &shape));
}

void cuda_attention_backward(struct backend *be, const struct attention_backward_args *args) {
    struct attention_shape shape = attention_shape(args->qkv, args->heads, args->kv_heads);
    struct attention_backward_args limited = *args;
    if (attention_is_void(be, &shape, "attention")) return;
    int64_t window = limiting_window(args->window, args->softcap, &shape);
    limited.first_keys =
        limits(be, args->first_keys, window, &shape, window ? backward_bytes(be, args, &shape) : 0);
    bool on_tensor_cores = backward_on_tensor_cores(be, args, &shape);
    if (on_tensor_cores && on_warp_groups(be, args->qkv->dtype, args->softcap, &shape)) {
        if (shape.width == 256) attention_wgmma_wide_backward(be, &limited, &shape);
        else attention_wgmma_backward(be, &limited, &shape);
        return;
    }
    struct column_sums_args sums = {args->column_sums, args->dqkv};
    if (on_tensor_cores) attention_mma_backward(be, &limited, &shape);
    else attention_simt_backward(be, &limited, &shape);
    if (!on_tensor_cores && args->column_sums) cuda_column_sums(be, &sums);
    if (args->track_amax) cuda_find_amax(be, args->track_amax, args->dqkv);
}
