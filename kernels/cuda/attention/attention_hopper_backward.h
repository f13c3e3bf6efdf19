/* The gradient of attention in one kernel: attention_mma_backward.cu has the formulas, and computes
 * S and dP twice, in two kernels. Hopper's kernel (attention_wgmma_backward.cu) does not. (Its
 * kernels for heads of more than IN_ORDER_MAX values do, and take only query_values from here.)
 *
 * A small pass computes delta. Then one kernel computes the five products: a block holds BLOCK_KEYS
 * keys and streams the queries that see them, from the last to the diagonal. dK and dV are sums in
 * registers. dQ is summed over blocks, in fp32 in memory, in the order of the keys: each chunk of
 * dQ has a semaphore, and a block adds its part only after the blocks of earlier keys. The block on
 * the diagonal is the last one; it rounds the sum and stores it in dqkv. No float atomics race: the
 * bits are the same every time.
 *
 * No order of block scheduling can deadlock. Blocks number their work by a counter, in the order in
 * which they start, and the blocks of earlier keys of a head have smaller numbers. A block waits
 * only for smaller numbers, all of which belong to blocks that have started; of the unfinished ones
 * the smallest waits for none. Earlier keys are seen by more queries, so the longest work starts
 * first. All blocks of a head begin with the same queries, so a block finds that the block before
 * it has just been there (DASH, arXiv:2601.21824, orders the queries in the same way). Where heads
 * share keys, they are the inner loop for the same reason. */
#pragma once

#include "kernels/cuda/attention/attention_mma.h"

enum {
    BLOCK_KEYS = 128,
    VALUE_ROWS = 64,   /* queries of a struct query_values */
    SUM_WARPS = 8,     /* parts of column sums for BLOCK_KEYS rows: one per 16 rows */
    IN_ORDER_MAX = 128 /* values of a head; dQ of wider ones has no sums in memory */
};

/* Values of 64 queries: -lse log2(e), -infinity beyond the end; and delta. */
struct query_values {
    float x[VALUE_ROWS], delta[VALUE_ROWS];
};

struct backward {
    void *dqkv;                  /* [B, T, stride] */
    const void *dout, *out;      /* as in attention_backward_args */
    const float *lse;            /* [B, H, T] */
    const int32_t *first_keys;   /* [B, T], or NULL */
    struct query_values *values; /* [B, H, tiles * BLOCK_KEYS / VALUE_ROWS] */
    float *dq;                   /* [B, H, tiles * BLOCK_KEYS, D]: sums so far, see the kernels */
    int *semaphores;             /* shaped as values: see semaphore_value; a kernel that adds 128
                                    queries at once uses the first of two */
    int *next_work;              /* number of blocks that have taken work */
    float *sums; /* optional [B, tiles, SUM_WARPS, stride]: sums of 16 rows of dqkv each */
    struct amax *track_amax; /* optional, of dqkv */
    int sequence, heads, kv_heads, batch;
    int tiles;              /* number of BLOCK_KEYS rows in a sequence */
    int kv_group;           /* for attention_work */
    int stride, out_stride; /* row stride of qkv and dqkv, of out and dout */
    float scale, factor;    /* of the scores; the same times log2(e) */
};

/* ---- on the host */

/* Lays out the workspace, and starts the pass that fills values, semaphores and next_work. */
struct backward attention_backward_begin(struct backend *be,
                                         const struct attention_backward_args *args,
                                         const struct attention_shape *shape);

/* Adds the parts of the column sums. */
void attention_backward_end(struct backend *be, const struct backward *b,
                            const struct attention_backward_args *args,
                            const struct attention_shape *shape);

/* ---- on the device */

/* Value of a semaphore when the block of key tile `tile` may add: 2 tile, or one more if the sum
 * has begun. */
static __device__ __forceinline__ int semaphore_value(int tile, bool begun) {
    return 2 * tile + begun;
}

/* Keys that a block holds: rows from tile * BLOCK_KEYS on, in one head of keys. */
struct held {
    int batch, head, tile;
};

/* Takes the next piece of work. Called by all threads; `shared` is one int of the block. */
static __device__ __forceinline__ struct held take_work(const struct backward &b, int *shared) {
    if (threadIdx.x == 0) *shared = atomicAdd(b.next_work, 1);
    __syncthreads();
    /* The compiler has to know that the number is uniform in a warp. */
    int number = __shfl_sync(0xffffffffu, *shared, 0);
    struct attention_work work = attention_work(number, b.tiles, b.batch * b.kv_heads, b.kv_group);
    struct held of = {work.head / b.kv_heads, work.head % b.kv_heads, work.tile};
    return of;
}
