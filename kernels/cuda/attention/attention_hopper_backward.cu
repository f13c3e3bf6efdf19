/* The passes before and after Hopper's kernels for attention's gradient. */
#include "kernels/cuda/attention/attention_hopper_backward.h"
#include "kernels/cuda/partials.h"

enum { PREPARE_WARPS = 4, PREPARE_ROWS = VALUE_ROWS / PREPARE_WARPS, LOADS = 4 };

/* A block has VALUE_ROWS queries of a head: their values, and their semaphores. D / PACK lanes read
 * a row. */
template <typename T, int D>
static __global__ void __launch_bounds__(PREPARE_WARPS *WARP)
    prepare_kernel(const struct backward b) {
    const int chunks = D / PACK, at_once = WARP / chunks, count = PREPARE_ROWS / at_once;
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int halves = b.tiles * (BLOCK_KEYS / VALUE_ROWS);
    /* Heads come first: blocks that run together read whole rows. */
    int head = (int)blockIdx.x % b.heads, rest = (int)blockIdx.x / b.heads;
    int batch = rest / halves, half = rest % halves, first = half * VALUE_ROWS;
    int64_t of_batch = (int64_t)batch * b.sequence, of_head = (int64_t)batch * b.heads + head;
    struct query_values *to = b.values + of_head * halves + half;
    for (int begin = 0; begin < count; begin += LOADS) {
        uint4 dout[LOADS] = {}, out[LOADS] = {}; /* packs; the loads are in flight together */
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int row = first + warp * PREPARE_ROWS + (begin + i) * at_once + lane / chunks;
            int64_t at = (of_batch + row) * b.out_stride + head * D + lane % chunks * PACK;
            if (row >= b.sequence) continue;
            dout[i] = *(const uint4 *)((const T *)b.dout + at);
            out[i] = *(const uint4 *)((const T *)b.out + at);
        }
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int row = warp * PREPARE_ROWS + (begin + i) * at_once + lane / chunks;
            float left[PACK], right[PACK], sum = 0;
            load_pack(left, (const T *)&dout[i]);
            load_pack(right, (const T *)&out[i]);
            for (int j = 0; j < PACK; j++) sum += left[j] * right[j];
            for (int j = chunks / 2; j > 0; j /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, j);
            if (lane % chunks == 0) to->delta[row] = sum;
        }
    }
    if (threadIdx.x < VALUE_ROWS) {
        int row = first + (int)threadIdx.x;
        bool valid = row < b.sequence;
        to->x[threadIdx.x] = valid ? -b.lse[of_head * b.sequence + row] * LOG2_OF_E : -INFINITY;
    }
    if (D > IN_ORDER_MAX) return;
    /* The first key tile that the first of these queries sees begins the sums. */
    int tile = 0;
    if (b.first_keys && first < b.sequence) tile = b.first_keys[of_batch + first] / BLOCK_KEYS;
    if (threadIdx.x == 0) b.semaphores[of_head * halves + half] = semaphore_value(tile, false);
    if (blockIdx.x == 0 && threadIdx.x == 0) *b.next_work = 0;
}

static int64_t tiles_of(const struct attention_shape *shape) {
    return blocks_of(shape->sequence, BLOCK_KEYS);
}
static int64_t sums_rows(const struct attention_shape *shape) {
    return shape->batch * tiles_of(shape) * SUM_WARPS;
}

/* Lays out the workspace at `memory`, which may be NULL. Returns its size in bytes. */
static size_t lay_out(struct backward *b, const struct attention_backward_args *args,
                      const struct attention_shape *shape, void *memory) {
    struct arena arena = {(char *)memory, 0, SIZE_MAX};
    size_t tiles = (size_t)(shape->batch * shape->heads * tiles_of(shape));
    size_t halves = tiles * (BLOCK_KEYS / VALUE_ROWS);
    size_t sums = (size_t)(sums_rows(shape) * tensor_columns(args->dqkv));
    b->values = (struct query_values *)arena_take(&arena, halves * sizeof *b->values);
    b->dq = NULL, b->semaphores = b->next_work = NULL;
    if (shape->width <= IN_ORDER_MAX) {
        size_t width = (size_t)shape->width;
        b->dq = (float *)arena_take(&arena, tiles * BLOCK_KEYS * width * sizeof *b->dq);
        b->semaphores = (int *)arena_take(&arena, halves * sizeof *b->semaphores);
        b->next_work = (int *)arena_take(&arena, sizeof *b->next_work);
    }
    b->sums = args->column_sums ? (float *)arena_take(&arena, sums * sizeof *b->sums) : NULL;
    return arena.used;
}

size_t attention_backward_bytes(const struct attention_backward_args *args,
                                const struct attention_shape *shape) {
    struct backward b;
    return lay_out(&b, args, shape, NULL);
}

template <typename T, int D> static void prepare(struct backend *be, const struct backward *b) {
    unsigned blocks = (unsigned)(b->batch * b->heads * b->tiles * (BLOCK_KEYS / VALUE_ROWS));
    LAUNCH((prepare_kernel<T, D>), blocks, PREPARE_WARPS * WARP, 0, cuda_state(be)->compute, *b);
}

struct backward attention_backward_begin(struct backend *be,
                                         const struct attention_backward_args *args,
                                         const struct attention_shape *shape) {
    struct backward b;
    int width = (int)shape->width;
    b.dqkv = args->dqkv->data;
    b.dout = args->dout->data;
    b.out = args->out->data;
    b.lse = args->lse;
    b.first_keys = args->first_keys;
    b.track_amax = args->track_amax;
    lay_out(&b, args, shape, backend_workspace(be, attention_backward_bytes(args, shape)));
    b.sequence = (int)shape->sequence;
    b.heads = (int)shape->heads;
    b.kv_heads = (int)shape->kv_heads;
    b.batch = (int)shape->batch;
    b.tiles = (int)tiles_of(shape);
    b.kv_group = attention_group(shape, args->qkv->dtype, shape->batch * shape->kv_heads);
    b.stride = (b.heads + 2 * b.kv_heads) * width;
    b.out_stride = b.heads * width;
    b.scale = attention_score(args->scale, 0).scale;
    b.factor = b.scale * LOG2_OF_E;
    BY_TYPE_AND_ANY_WIDTH(prepare, args->qkv->dtype, width, be, &b);
    return b;
}

void attention_backward_end(struct backend *be, const struct backward *b,
                            const struct attention_backward_args *args,
                            const struct attention_shape *shape) {
    if (b->sums) {
        struct sums sums = sums_of(args->column_sums);
        add_partials(be, &sums, b->sums, sums_rows(shape));
    }
    cuda_launched(be, "attention_backward");
}
