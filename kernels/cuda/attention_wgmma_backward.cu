/* The gradient of attention on Hopper's tensor cores, in two kernels as in
 * attention_mma_backward.cu, which has the formulas and the reason for two; for sm_90a only.
 *
 *     query_gradients_kernel   holds 128 queries: S = Q K', dP = dO V', dQ += dS K
 *     key_gradients_kernel     holds 128 keys:    S' = K Q', dP' = V dO', dV += P' dO, dK += dS' Q
 *
 * Each of two groups of warps has 64 of the held rows. P and dS leave the accumulators of wgmma as
 * A of the next product, in registers. A group starts the scores of the next tile, then the sums of
 * this one, and exponentiates while these and those of the other group are multiplied. The compiler
 * moves the second wait for products ahead of the exponentials; a wait for the next tile between
 * them keeps the order. gpu_check.sh measures both; not yet measured on a GPU. */
#include "kernels/cuda/attention_wgmma_backward.h"
#include "kernels/cuda/partials.h"

#ifndef ATTENTION_WAIT_BETWEEN
#define ATTENTION_WAIT_BETWEEN 0
#endif
static constexpr bool WAIT_BETWEEN = ATTENTION_WAIT_BETWEEN;

/* ---- queries */

/* Computes x and delta of the thread's two rows, 8 apart; the values of all rows of the warp are
 * also stored in `values`, in memory. out, lse: from the group's first row on, of which `valid`
 * exist. */
template <typename T, int D>
static __device__ __forceinline__ void
find_values(float x[2], float delta[2], struct query_values *shared, struct query_values *values,
            const T *dout, const T *out, int64_t out_stride, const float *lse, int valid) {
    const int chunks = D / PACK, at_once = WARP / chunks;
    int lane = (int)threadIdx.x % WARP, first = warp_in_group() * 16;
#pragma unroll
    for (int i = 0; i < 16; i += at_once) {
        int row = first + i + lane / chunks, chunk = lane % chunks;
        float a[PACK], b[PACK] = {}, sum = 0;
        load_pack(a, dout + chunk_at(row, chunk));
        if (row < valid) load_pack(b, out + row * out_stride + chunk * PACK);
        for (int j = 0; j < PACK; j++) sum += a[j] * b[j];
        for (int j = chunks / 2; j > 0; j /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, j);
        if (chunk == 0) {
            float shift = row < valid ? -lse[row] * LOG2_OF_E : -INFINITY;
            values->x[row] = shared->x[row] = shift;
            values->delta[row] = shared->delta[row] = sum;
        }
    }
    __syncwarp();
    for (int half = 0; half < 2; half++) {
        int row = first + half * 8 + lane / 4;
        x[half] = shared->x[row];
        delta[half] = shared->delta[row];
    }
}

/* Replaces s by P, and ds, which is dP, by dS, for step `step` and the group's queries from `query`
 * on. SUMS: groups of products that were started after ds and may still run. With WAIT_BETWEEN
 * waits for the tile of step `next`, unless it is negative. */
template <typename T, bool LIMITED, int SUMS>
static __device__ __forceinline__ void
query_scores(float s[GROUP_SUMS], float ds[GROUP_SUMS], const struct backward<T> &b,
             const struct key_source &source, int query, int step, bool diagonal, const float x[2],
             const float delta[2], const struct ring &ring, int next) {
    float factor = b.factor;
    group_wait<SUMS + 1>();
    if (diagonal) mask<false>(s, warp_in_group() * 16);
    if (LIMITED)
        mask_before<false>(s, b.first_keys + (int64_t)source.batch * b.sequence, b.sequence - 1,
                           query + warp_in_group() * 16, (source.first + step) * GROUP_ROWS);
#pragma unroll
    for (int i = 0; i < GROUP_SUMS; i++) s[i] = exp2_approx(fmaf(s[i], factor, x[i / 2 % 2]));
    if (WAIT_BETWEEN && next >= 0) wait_for_slot(ring, next);
    group_wait<SUMS>();
#pragma unroll
    for (int i = 0; i < GROUP_SUMS; i++) ds[i] = s[i] * (ds[i] - delta[i / 2 % 2]);
}

/* dq of the group's queries, from `query` on, over the steps from `begin` to `seen`, whose keys
 * they see: at least one. */
template <typename T, int D, bool LIMITED>
static __device__ __forceinline__ void
sum_over_keys(float dq[D / TILE_VALUES][GROUP_SUMS], const struct places &places,
              const struct key_source &source, const struct backward<T> &b, const float x[2],
              const float delta[2], int query, int begin, int seen) {
    const struct ring &ring = places.ring;
    float s[GROUP_SUMS], ds[GROUP_SUMS];
    uint32_t a[GROUP_ROWS / 16][4];
    fetch_keys<D>(ring, source, begin + AHEAD);
    wait_for_slot(ring, begin);
    group_fence();
    start_both<T, D>(s, ds, places, begin);
    query_scores<T, LIMITED, 0>(s, ds, b, source, query, begin, seen == begin + 1, x, delta, ring,
                                -1);
    round_to<T>(a, ds);
    if (seen > begin + 1) wait_for_slot(ring, begin + 1);
    for (int step = begin + 1; step < seen; step++) {
        fetch_keys<D>(ring, source, step + AHEAD);
        group_fence();
        start_both<T, D>(s, ds, places, step);
        start_sums<T, D>(dq, a, slot_of<D>(ring, step - 1));
        query_scores<T, LIMITED, 1>(s, ds, b, source, query, step, step == seen - 1, x, delta, ring,
                                    step + 1 < seen ? step + 1 : -1);
        if (!WAIT_BETWEEN && step + 1 < seen) wait_for_slot(ring, step + 1);
        group_wait<0>();
        empty_slot(ring, step - 1);
        round_to<T>(a, ds);
    }
    group_fence();
    start_sums<T, D>(dq, a, slot_of<D>(ring, seen - 1));
    group_wait<0>();
    empty_slot(ring, seen - 1);
}

/* dQ of HELD_ROWS queries; keys and values are streamed, up to the diagonal. */
template <typename T, int D, bool LIMITED>
static __global__ void __launch_bounds__(THREADS, 1)
    query_gradients_kernel(const struct backward<T> b, const __grid_constant__ CUtensorMap qkv,
                           const __grid_constant__ CUtensorMap dout) {
    DYNAMIC_TILES(shared);
    struct places places = places_of<D>(shared);
    struct attention_work work =
        attention_work((int)blockIdx.x, b.tiles, b.batch * b.heads, b.group);
    /* The last queries have the most keys. */
    struct held of = {work.head / b.heads, work.head % b.heads, b.tiles - 1 - work.tile};
    int begin = of.tile * HELD_ROWS, group = group_of_warps();
    int first = begin + group * GROUP_ROWS, valid = b.sequence - first;
    int end = b.sequence < begin + HELD_ROWS ? b.sequence : begin + HELD_ROWS;
    const int32_t *first_keys = b.first_keys + (int64_t)of.batch * b.sequence;
    struct key_source source = key_source(&qkv, b.heads, b.kv_heads, of.batch, of.head,
                                          LIMITED ? first_keys[begin] / GROUP_ROWS : 0,
                                          (end + GROUP_ROWS - 1) / GROUP_ROWS);
    hold<D>(places, &qkv, of.head, &dout, of.head, of.batch, begin);
    for (int step = 0; step < AHEAD; step++) fetch_keys<D>(places.ring, source, step);

    float x[2], delta[2], dq[D / TILE_VALUES][GROUP_SUMS] = {};
    int64_t row = (int64_t)of.batch * b.sequence + first;
    phase_wait(places.held_full, 0);
    find_values<T, D>(x, delta, places.values + group,
                      b.values + ((int64_t)work.head * b.tiles + of.tile) * GROUPS + group,
                      (const T *)(places.own + layout<D>::SECOND),
                      b.out + row * b.out_stride + of.head * D, b.out_stride,
                      b.lse + (int64_t)work.head * b.sequence + first, valid);
    int seen = valid > 0 ? first / GROUP_ROWS + 1 - source.first : 0;
    int unseen = LIMITED && valid > 0 ? first_keys[first] / GROUP_ROWS - source.first : 0;
    const float factors[2] = {b.scale, b.scale};
    if (LIMITED) skip_steps<D>(places.ring, source, 0, unseen);
    if (seen > 0)
        sum_over_keys<T, D, LIMITED>(dq, places, source, b, x, delta, first, unseen, seen);
    store_rows<T, D, true>(b.dqkv + row * b.stride + of.head * D, b.stride, valid, (T *)places.own,
                           dq, factors, sums_place(b, of, of.head * D));
    skip_steps<D>(places.ring, source, seen, source.steps);
}

/* ---- keys */

/* Tiles of queries that are streamed: the tiles of one head from the diagonal on, then those of the
 * next head that reads the same keys. */
struct query_source {
    const CUtensorMap *qkv, *dout, *values;
    const volatile struct held
        *of; /* tile of keys; in shared memory, because registers are needed for the sums */
    int per_head, steps;
};

/* Starts to fetch step `step`, if it exists; thread 0 does. */
template <int D>
static __device__ __forceinline__ void fetch_queries(const struct places &places,
                                                     const struct query_source &source, int step) {
    if (threadIdx.x == 0 && step < source.steps) {
        int readers = source.steps / source.per_head, batch = source.of->batch;
        int head = source.of->head * readers + step / source.per_head;
        int tile = source.of->tile * GROUPS + step % source.per_head;
        phase_barrier *full = refill_slot(places.ring, step, head_tile<D>::SLOT + VALUES_BYTES);
        unsigned char *to = slot_of<D>(places.ring, step);
        fetch_rows<D>(to, source.qkv, head, tile * GROUP_ROWS, batch, full);
        fetch_rows<D>(to + layout<D>::SECOND, source.dout, head, tile * GROUP_ROWS, batch, full);
        tensor_copy(places.values + step % RING, source.values, 0, tile, head, batch, full);
    }
    __syncwarp();
}

/* Replaces s by P', and ds, which is dP', by dS'; a thread's columns are queries. `tile`: tiles
 * from the group's keys to the queries. SUMS: groups of products that were started after ds. THEN:
 * how many of them still run while ds is read. next: as above. */
template <typename T, bool LIMITED, int SUMS, int THEN>
static __device__ __forceinline__ void
key_scores(float s[GROUP_SUMS], float ds[GROUP_SUMS], const struct backward<T> &b,
           const volatile struct held *of, int tile, const struct query_values *values,
           const struct ring &ring, int next) {
    const float *x = values->x + threadIdx.x % 4 * 2, *delta = values->delta + threadIdx.x % 4 * 2;
    float factor = b.factor;
    group_wait<SUMS + 1>();
    if (tile == 0) mask<true>(s, warp_in_group() * 16);
    if (LIMITED) {
        int key = (of->tile * GROUPS + group_of_warps()) * GROUP_ROWS;
        mask_before<true>(s, b.first_keys + (int64_t)of->batch * b.sequence, b.sequence - 1,
                          key + tile * GROUP_ROWS, key + warp_in_group() * 16);
    }
#pragma unroll
    for (int i = 0; i < GROUP_SUMS; i += 4) {
        float2 pair = *(const float2 *)(x + i * 2);
#pragma unroll
        for (int j = i; j < i + 4; j++)
            s[j] = exp2_approx(fmaf(s[j], factor, j % 2 ? pair.y : pair.x));
    }
    if (WAIT_BETWEEN && next >= 0) wait_for_slot(ring, next);
    group_wait<THEN>();
#pragma unroll
    for (int i = 0; i < GROUP_SUMS; i += 4) {
        float2 pair = *(const float2 *)(delta + i * 2);
#pragma unroll
        for (int j = i; j < i + 4; j++) ds[j] = s[j] * (ds[j] - (j % 2 ? pair.y : pair.x));
    }
}

/* dv += p dO, dk += a Q, for the queries of step `step`. */
template <typename T, int D>
static __device__ __forceinline__ void
start_key_sums(float dk[D / TILE_VALUES][GROUP_SUMS], float dv[D / TILE_VALUES][GROUP_SUMS],
               const uint32_t p[GROUP_ROWS / 16][4], const uint32_t a[GROUP_ROWS / 16][4],
               const struct places &places, int step) {
    const unsigned char *slot = slot_of<D>(places.ring, step);
    start_sums<T, D>(dv, p, slot + layout<D>::SECOND);
    start_sums<T, D>(dk, a, slot);
}

/* Adds to dk and dv of the group's keys the `count` steps from `first` on, of one head from the
 * diagonal on; dk is still to be multiplied by scale. */
template <typename T, int D, bool LIMITED>
static __device__ __forceinline__ void
sum_over_queries(float dk[D / TILE_VALUES][GROUP_SUMS], float dv[D / TILE_VALUES][GROUP_SUMS],
                 const struct places &places, const struct query_source &source,
                 const struct backward<T> &b, int first, int count) {
    const struct ring &ring = places.ring;
    float s[GROUP_SUMS], ds[GROUP_SUMS];
    uint32_t p[GROUP_ROWS / 16][4], a[GROUP_ROWS / 16][4];
    fetch_queries<D>(places, source, first + AHEAD);
    wait_for_slot(ring, first);
    group_fence();
    start_both<T, D>(s, ds, places, first);
    key_scores<T, LIMITED, 0, 0>(s, ds, b, source.of, 0, places.values + first % RING, ring, -1);
    round_to<T>(p, s);
    round_to<T>(a, ds);
    if (count > 1) wait_for_slot(ring, first + 1);
    for (int i = 1; i < count; i++) {
        int step = first + i;
        fetch_queries<D>(places, source, step + AHEAD);
        group_fence();
        start_both<T, D>(s, ds, places, step);
        start_key_sums<T, D>(dk, dv, p, a, places, step - 1);
        key_scores<T, LIMITED, 2, D == 64 ? 2 : 0>(s, ds, b, source.of, i,
                                                   places.values + step % RING, ring,
                                                   i + 1 < count ? step + 1 : -1);
        if (!WAIT_BETWEEN && i + 1 < count) wait_for_slot(ring, step + 1);
        group_wait<0>();
        empty_slot(ring, step - 1);
        round_to<T>(p, s);
        round_to<T>(a, ds);
    }
    group_fence();
    start_key_sums<T, D>(dk, dv, p, a, places, first + count - 1);
    group_wait<0>();
    empty_slot(ring, first + count - 1);
}

/* Does the same for all heads that read the keys. The keys of group 1 are not seen by a head's
 * first tile. */
template <typename T, int D, bool LIMITED>
static __device__ __forceinline__ void
sum_over_heads(float dk[D / TILE_VALUES][GROUP_SUMS], float dv[D / TILE_VALUES][GROUP_SUMS],
               const struct places &places, const struct query_source &source,
               const struct backward<T> &b) {
    int group = group_of_warps(), unseen = group < source.per_head ? group : source.per_head;
    for (int head = 0; head < source.steps; head += source.per_head) {
        for (int step = head; step < head + unseen; step++) {
            fetch_queries<D>(places, source, step + AHEAD);
            wait_for_slot(places.ring, step);
            empty_slot(places.ring, step);
        }
        if (unseen < source.per_head)
            sum_over_queries<T, D, LIMITED>(dk, dv, places, source, b, head + unseen,
                                            source.per_head - unseen);
    }
}

/* dK and dV of HELD_ROWS keys; queries and gradients of outputs are streamed. */
template <typename T, int D, bool LIMITED>
static __global__ void __launch_bounds__(THREADS, 1)
    key_gradients_kernel(const struct backward<T> b, const __grid_constant__ CUtensorMap qkv,
                         const __grid_constant__ CUtensorMap dout,
                         const __grid_constant__ CUtensorMap values) {
    DYNAMIC_TILES(shared);
    struct places places = places_of<D>(shared);
    struct attention_work work =
        attention_work((int)blockIdx.x, b.tiles, b.batch * b.kv_heads, b.kv_group);
    struct held of = {work.head / b.kv_heads, work.head % b.kv_heads, work.tile};
    volatile struct held *kept = (volatile struct held *)(places.held_full + 1);
    int begin = of.tile * HELD_ROWS, end = b.sequence; /* queries that see the keys */
    if (LIMITED)
        end = last_reader(b.first_keys + (int64_t)of.batch * b.sequence, begin, b.sequence,
                          begin + HELD_ROWS);
    int per_head = (end - begin + GROUP_ROWS - 1) / GROUP_ROWS;
    struct query_source source = {&qkv, &dout,    &values,
                                  kept, per_head, per_head * (b.heads / b.kv_heads)};
    if (threadIdx.x == 0) kept->batch = of.batch, kept->head = of.head, kept->tile = of.tile;
    hold<D>(places, &qkv, b.heads + of.head, &qkv, b.heads + b.kv_heads + of.head, of.batch, begin);
    for (int step = 0; step < AHEAD; step++) fetch_queries<D>(places, source, step);

    float dk[D / TILE_VALUES][GROUP_SUMS] = {}, dv[D / TILE_VALUES][GROUP_SUMS] = {};
    phase_wait(places.held_full, 0);
    sum_over_heads<T, D, LIMITED>(dk, dv, places, source, b);
    of.batch = kept->batch, of.head = kept->head, of.tile = kept->tile;
    int first = of.tile * HELD_ROWS + group_of_warps() * GROUP_ROWS;
    int column = b.out_stride + of.head * D, valid = b.sequence - first;
    const float scales[2] = {b.scale, b.scale}, ones[2] = {1, 1};
    T *to = b.dqkv + ((int64_t)of.batch * b.sequence + first) * b.stride + column;
    float *sums = sums_place(b, of, column);
    store_rows<T, D, true>(to, b.stride, valid, (T *)places.own, dk, scales, sums);
    store_rows<T, D, true>(to + b.kv_heads * D, b.stride, valid,
                           (T *)(places.own + layout<D>::SECOND), dv, ones,
                           sums ? sums + b.kv_heads * D : NULL);
}

/* ---- on the host */

static int held_tiles(const struct attention_shape *shape) {
    return (int)blocks_of(shape->sequence, HELD_ROWS);
}
static int64_t sums_rows(const struct attention_shape *shape) {
    return shape->batch * held_tiles(shape) * WARPS;
}

/* Lays out the workspace at `memory`, which may be NULL. Returns its size in bytes. */
template <typename T>
static size_t lay_out(struct backward<T> *b, const struct attention_backward_args *args,
                      const struct attention_shape *shape, void *memory) {
    struct arena arena = {(char *)memory, 0, SIZE_MAX};
    int64_t groups = shape->batch * shape->heads * held_tiles(shape) * GROUPS;
    int64_t sums = args->column_sums ? sums_rows(shape) * tensor_columns(args->dqkv) : 0;
    b->values = (struct query_values *)arena_take(&arena, (size_t)groups * VALUES_BYTES);
    b->sums = sums ? (float *)arena_take(&arena, (size_t)sums * sizeof(float)) : NULL;
    return arena.used;
}

size_t attention_wgmma_backward_bytes(const struct attention_backward_args *args,
                                      const struct attention_shape *shape) {
    struct backward<__half> b;
    return lay_out(&b, args, shape, NULL);
}

template <typename T, int D>
static struct backward<T> plan(struct backend *be, const struct attention_backward_args *args,
                               const struct attention_shape *shape) {
    struct backward<T> b;
    b.dqkv = (T *)args->dqkv->data;
    b.out = (const T *)args->out->data;
    b.lse = args->lse;
    b.first_keys = args->first_keys;
    lay_out(&b, args, shape, backend_workspace(be, attention_wgmma_backward_bytes(args, shape)));
    b.sequence = (int)shape->sequence;
    b.heads = (int)shape->heads;
    b.kv_heads = (int)shape->kv_heads;
    b.batch = (int)shape->batch;
    b.tiles = held_tiles(shape);
    b.group = attention_group(shape, shape->batch * shape->heads);
    b.kv_group = attention_group(shape, shape->batch * shape->kv_heads);
    b.stride = (b.heads + 2 * b.kv_heads) * D;
    b.out_stride = b.heads * D;
    b.scale = 1 / sqrtf((float)D);
    b.factor = b.scale * LOG2_OF_E;
    return b;
}

template <typename T, int D, bool LIMITED>
static void launch_with(struct backend *be, const struct attention_backward_args *args,
                        const struct attention_shape *shape) {
    struct backward<T> b = plan<T, D>(be, args, shape);
    const char *what = "attention_backward";
    CUtensorMap qkv, dout, values;
    if (!attention_wgmma_map(&qkv, be, args->qkv, b.heads + 2 * b.kv_heads, shape) ||
        !attention_wgmma_map(&dout, be, args->dout, b.heads, shape) ||
        !attention_wgmma_map_floats(&values, be, (const float *)b.values, 2 * GROUP_ROWS,
                                    b.tiles * GROUPS, b.heads, b.batch))
        return;
    size_t bytes = layout<D>::BYTES;
    cudaStream_t stream = cuda_state(be)->compute;
    if (!cuda_shared(be, (const void *)query_gradients_kernel<T, D, LIMITED>, bytes, what) ||
        !cuda_shared(be, (const void *)key_gradients_kernel<T, D, LIMITED>, bytes, what))
        return;
    unsigned query_blocks = (unsigned)(b.tiles * b.batch * b.heads);
    unsigned key_blocks = (unsigned)(b.tiles * b.batch * b.kv_heads);
    LAUNCH((query_gradients_kernel<T, D, LIMITED>), query_blocks, THREADS, bytes, stream, b, qkv,
           dout);
    LAUNCH((key_gradients_kernel<T, D, LIMITED>), key_blocks, THREADS, bytes, stream, b, qkv, dout,
           values);
    if (b.sums) {
        struct sums sums = sums_of(args->column_sums);
        add_partials(be, &sums, b.sums, sums_rows(shape));
    }
    cuda_launched(be, what);
}

template <typename T, int D>
static void launch(struct backend *be, const struct attention_backward_args *args,
                   const struct attention_shape *shape) {
    if (args->first_keys) launch_with<T, D, true>(be, args, shape);
    else launch_with<T, D, false>(be, args, shape);
}

void attention_wgmma_backward(struct backend *be, const struct attention_backward_args *args,
                              const struct attention_shape *shape) {
    assert(args->dqkv->dtype == args->qkv->dtype && args->dout->dtype == args->qkv->dtype);
    BY_TYPE_AND_WIDTH(launch, args->qkv->dtype, shape->width, be, args, shape);
}
