/* Shared by the attention files. attention.cu picks an implementation:
 *
 *     attention_wgmma_*  Hopper's tensor cores: fp16 and bf16, heads of 64, 128 or 256 values
 *     attention_mma_*    tensor cores of sm_80 and later: the same, and soft caps;
 *                        fp32 rounded to TF32 (the option tf32), heads of 64 or 128
 *     attention_simt_*   anything else: fp32 arithmetic in plain threads
 *
 * attention_mma_*.cu use warp-level mma.sync, which Ampere, Hopper and later GPUs all run. Hopper
 * alone has wgmma (a group of warps multiplies straight from shared memory) and TMA (one thread
 * fetches a tile): attention_wgmma_*.cu are compiled for sm_90a only. */
#pragma once

#include <assert.h>

#include "kernels/attention_score.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/ptx.h"

struct attention_shape {
    int64_t batch, sequence, heads, kv_heads, width; /* B, T, H, H_kv, D */
};

static inline struct attention_shape attention_shape(const struct tensor *qkv, int heads,
                                                     int kv_heads) {
    assert(qkv->rank == 3 && kv_heads >= 1 && heads % kv_heads == 0);
    int64_t all = heads + 2 * (int64_t)kv_heads;
    assert(qkv->shape[2] % all == 0);
    struct attention_shape shape = {qkv->shape[0], qkv->shape[1], heads, kv_heads,
                                    qkv->shape[2] / all};
    return shape;
}

enum { ATTENTION_WIDTH_MAX = 256 };

/* True if there is nothing to compute: no rows, or heads too wide, which is recorded as a
 * failure of `operation`. */
static inline bool attention_is_void(struct backend *be, const struct attention_shape *shape,
                                     const char *operation) {
    if (shape->width > ATTENTION_WIDTH_MAX && !be->failure.text[0])
        snprintf(be->failure.text, sizeof be->failure.text,
                 "%s: a head has %lld values, and this GPU code goes up to %d; use more heads "
                 "(n_head) or a smaller n_embd",
                 operation, (long long)shape->width, ATTENTION_WIDTH_MAX);
    return shape->width > ATTENTION_WIDTH_MAX || shape->batch * shape->sequence * shape->width == 0;
}

bool attention_mma_supports(const struct cuda_state *cuda, enum dtype dtype, float softcap,
                            int64_t width);

/* All tensors have the same dtype and start at multiples of 16 bytes, and
 * attention_mma_supports returned true. With a soft cap, first_keys are given. */
void attention_mma_forward(struct backend *be, const struct attention_forward_args *args,
                           const struct attention_shape *shape);
void attention_mma_backward(struct backend *be, const struct attention_backward_args *args,
                            const struct attention_shape *shape);
size_t attention_mma_backward_bytes(const struct attention_backward_args *args,
                                    const struct attention_shape *shape);

bool attention_wgmma_supports(struct cuda_state *cuda, enum dtype dtype, int64_t width);

/* Compute the same without a soft cap; they also require attention_wgmma_supports. _wide: heads of
 * 256 values, otherwise of 64 and 128. */
void attention_wgmma_forward(struct backend *be, const struct attention_forward_args *args,
                             const struct attention_shape *shape);
void attention_wgmma_backward(struct backend *be, const struct attention_backward_args *args,
                              const struct attention_shape *shape);
void attention_wgmma_wide_backward(struct backend *be, const struct attention_backward_args *args,
                                   const struct attention_shape *shape);
size_t attention_backward_bytes(const struct attention_backward_args *args,
                                const struct attention_shape *shape);

void attention_simt_forward(struct backend *be, const struct attention_forward_args *args,
                            const struct attention_shape *shape);
void attention_simt_backward(struct backend *be, const struct attention_backward_args *args,
                             const struct attention_shape *shape);
size_t attention_simt_backward_bytes(const struct attention_shape *shape);
