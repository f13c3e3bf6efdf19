/* The gradient of attention on Hopper's tensor cores for heads of 256 values:
 * attention_mma_backward.cu has the formulas; for sm_90a only.
 *
 * Sums of 64 rows take 128 registers of each thread of a group of warps, so a kernel has one of the
 * three, and there are three kernels, with eight products instead of five. Each group holds 64 rows
 * of two tensors in shared memory; both groups read tiles of 64 rows of two others:
 *
 *     sums  held    streamed  products
 *     dQ    Q, dO   K, V      S = Q K'     dP = dO V'    dQ += dS K
 *     dK    K, V    Q, dO     S' = K Q'    dP' = V dO'   dK += dS' Q
 *     dV    K       Q, dO     S' = K Q'                  dV += P' dO
 *
 * P' and dS leave the accumulators of wgmma as A of the last product. Its B is the first streamed
 * tile, or for dV the second: there are two slots for tiles that stay until then, and as many for
 * the others as fit. One group's exponentials overlap with the other's products. No sum is shared:
 * the bits are the same every time. */
#include "kernels/cuda/attention/attention_wgmma_backward.h"

enum {
    D = 256,
    HEAD_BYTES = head_tile<D>::BYTES,
    GROUPS = BLOCK_KEYS / GROUP_ROWS,
    WARPS = GROUPS * GROUP_THREADS / WARP,  /* the warps that multiply */
    THREADS = (GROUPS + 1) * GROUP_THREADS, /* and a group of which one thread fetches */
    REGISTERS = 240,                        /* per thread that multiplies */
    SERVICE_REGISTERS = 24                  /* per other thread */
};

enum wide_sums { QUERY_SUMS, KEY_SUMS, VALUE_SUMS };

template <int SUMS> struct layout {
    enum {
        HELD = SUMS == VALUE_SUMS ? 1 : 2, /* tiles of a group */
        FIRST_SLOTS = 2,                   /* for streamed K or Q */
        SECOND_SLOTS = SUMS == VALUE_SUMS ? 3 : 1,
        FIRST_AT = GROUPS * HELD * HEAD_BYTES,
        SECOND_AT = FIRST_AT + FIRST_SLOTS * HEAD_BYTES,
        VALUES_AT = SECOND_AT + SECOND_SLOTS * HEAD_BYTES,
        BARRIERS_AT = VALUES_AT + FIRST_SLOTS * (int)sizeof(struct query_values),
        BYTES = BARRIERS_AT + (2 * (FIRST_SLOTS + SECOND_SLOTS) + 1) * 8
    };
};

/* Slots of one of the two streamed tensors. */
struct slots {
    unsigned char *tiles;
    struct step_barriers full, empty;
};
static __device__ __forceinline__ unsigned char *slot_at(const struct slots &slots, int step) {
    return slots.tiles + step % slots.full.count * HEAD_BYTES;
}

/* Addresses in shared memory. */
struct places {
    unsigned char *held; /* of group 0, first and second tile, then of group 1 */
    struct slots first, second;
    struct query_values *values; /* of the streamed queries, in the slots of `first` */
    phase_barrier *held_full;
};
template <int SUMS>
static __device__ __forceinline__ struct places places_of(unsigned char *memory) {
    typedef struct layout<SUMS> at;
    phase_barrier *b = (phase_barrier *)(memory + at::BARRIERS_AT);
    const int some = at::FIRST_SLOTS, others = at::SECOND_SLOTS;
    struct places places = {};
    places.held = memory;
    places.first.tiles = memory + at::FIRST_AT;
    places.first.full = {b, some};
    places.first.empty = {b + some, some};
    places.second.tiles = memory + at::SECOND_AT;
    places.second.full = {b + 2 * some, others};
    places.second.empty = {b + 2 * some + others, others};
    places.values = (struct query_values *)(memory + at::VALUES_AT);
    places.held_full = b + 2 * (some + others);
    return places;
}
/* Called by one thread. */
static __device__ __forceinline__ void init_barriers(const struct places &p) {
    const struct slots both[2] = {p.first, p.second};
#pragma unroll
    for (int i = 0; i < 2; i++)
        for (int slot = 0; slot < both[i].full.count; slot++) {
            phase_init(both[i].full.first + slot, 1);
            phase_init(both[i].empty.first + slot, WARPS);
        }
    phase_init(p.held_full, 1);
    phase_init_done();
}

/* ---- work of a block */

/* The held rows, and the streamed ones: `tiles` tiles of 64 rows from tile `first` on, of each of
 * `readers` heads from first_head on. */
struct block_work {
    struct held of; /* head: of queries for QUERY_SUMS, otherwise of keys */
    int first_head, readers, first, tiles;
};
static __device__ __forceinline__ int steps_of(const struct block_work &work) {
    return work.tiles * work.readers;
}
static __device__ __forceinline__ int head_of_step(const struct block_work &work, int step) {
    return work.first_head + step / work.tiles;
}
/* First row of the streamed tiles. */
static __device__ __forceinline__ int row_of_step(const struct block_work &work, int step) {
    return (work.first + step % work.tiles) * GROUP_ROWS;
}

template <int SUMS, bool LIMITED>
static __device__ __forceinline__ struct block_work work_of(const struct backward &b, int group) {
    bool queries = SUMS == QUERY_SUMS;
    int heads = queries ? b.heads : b.kv_heads, readers = b.heads / b.kv_heads;
    struct attention_work work = attention_work((int)blockIdx.x, b.tiles, b.batch * heads, group);
    /* The last queries have the most keys, the first keys the most queries. */
    int tile = queries ? b.tiles - 1 - work.tile : work.tile;
    struct held of = {work.head / heads, work.head % heads, tile};
    const int32_t *first_keys = b.first_keys + (int64_t)of.batch * b.sequence;
    int begin = tile * BLOCK_KEYS, end = begin + BLOCK_KEYS, first = begin / GROUP_ROWS;
    if (queries) {
        first = LIMITED ? first_keys[begin] / GROUP_ROWS : 0;
        if (end > b.sequence) end = b.sequence;
    } else end = LIMITED ? last_reader(first_keys, begin, b.sequence, end) : b.sequence;
    int tiles = (end + GROUP_ROWS - 1) / GROUP_ROWS - first;
    struct block_work streamed = {of, of.head * readers, readers, first, tiles};
    if (queries) streamed.first_head = of.head / readers, streamed.readers = 1;
    return streamed;
}

struct maps {
    const CUtensorMap *qkv, *dout, *values;
};

/* Fetches the held tiles, then those of each step, with the values of queries. Called by one
 * thread. */
template <int SUMS>
static __device__ __forceinline__ void fetch_all(const struct places &p, const struct backward &b,
                                                 const struct block_work &work,
                                                 const struct maps &maps) {
    const bool queries = SUMS == QUERY_SUMS;
    const int held = layout<SUMS>::HELD;
    int batch = work.of.batch, keys = b.heads + (queries ? work.first_head : work.of.head);
    int begin = work.of.tile * BLOCK_KEYS, values = keys + b.kv_heads;
    const CUtensorMap *second = queries ? maps.dout : maps.qkv;
    phase_arrive_expecting(p.held_full, GROUPS * held * HEAD_BYTES);
    for (int i = 0; i < GROUPS; i++) {
        unsigned char *to = p.held + i * held * HEAD_BYTES;
        int row = begin + i * GROUP_ROWS;
        fetch_rows<D>(to, maps.qkv, queries ? work.of.head : keys, row, batch, p.held_full);
        if (held == 2)
            fetch_rows<D>(to + HEAD_BYTES, second, queries ? work.of.head : values, row, batch,
                          p.held_full);
    }
    for (int step = 0; step < steps_of(work); step++) {
        int head = head_of_step(work, step), row = row_of_step(work, step);
        phase_barrier *full = barrier_of(p.first.full, step);
        int bytes = HEAD_BYTES + (queries ? 0 : (int)sizeof(struct query_values));
        if (step >= p.first.full.count) wait_for_step(p.first.empty, step - p.first.full.count);
        phase_arrive_expecting(full, bytes);
        fetch_rows<D>(slot_at(p.first, step), maps.qkv, queries ? keys : head, row, batch, full);
        if (!queries)
            tensor_copy(p.values + step % p.first.full.count, maps.values, 0, row / GROUP_ROWS,
                        head, batch, full);
        full = barrier_of(p.second.full, step);
        if (step >= p.second.full.count) wait_for_step(p.second.empty, step - p.second.full.count);
        phase_arrive_expecting(full, HEAD_BYTES);
        fetch_rows<D>(slot_at(p.second, step), queries ? maps.qkv : maps.dout,
                      queries ? values : head, row, batch, full);
    }
}

/* ---- products */

/* Values of the thread's two queries, 8 apart, where rows are queries. */
struct row_values {
    float x[2], delta[2];
};
static __device__ __forceinline__ struct row_values
row_values_of(const struct backward &b, const struct block_work &work, int group) {
    int head = work.of.batch * b.heads + work.of.head;
    int64_t tile = (int64_t)(head * b.tiles + work.of.tile) * GROUPS + group;
    const struct query_values *of = b.values + tile;
    int row = warp_in_group() * 16 + (int)threadIdx.x % WARP / 4;
    struct row_values values = {{of->x[row], of->x[row + 8]}, {of->delta[row], of->delta[row + 8]}};
    return values;
}

/* Replaces s by P. Rows are the warp's queries, from `query` on; columns are keys from `key` on. */
template <bool LIMITED>
static __device__ __forceinline__ void
row_probabilities(float s[GROUP_SUMS], const struct backward &b, const struct row_values &values,
                  int batch, int query, int key) {
    if (key + GROUP_ROWS > query) mask<false>(s, query - key);
    if (LIMITED)
        mask_before<false>(s, b.first_keys + (int64_t)batch * b.sequence, b.sequence - 1, query,
                           key);
#pragma unroll
    for (int i = 0; i < GROUP_SUMS; i++)
        s[i] = exp2_approx(fmaf(s[i], b.factor, values.x[i / 2 % 2]));
}

/* Adds all steps to the group's sums; those of queries and keys still lack the factor scale. */
template <typename T, int SUMS, bool LIMITED>
static __device__ __forceinline__ void add_steps(float sum[D / TILE_VALUES][GROUP_SUMS],
                                                 const struct places &p, const struct backward &b,
                                                 const struct block_work &work) {
    const bool queries = SUMS == QUERY_SUMS;
    int group = group_of_warps(), begin = work.of.tile * BLOCK_KEYS + group * GROUP_ROWS;
    const unsigned char *held = p.held + group * layout<SUMS>::HELD * HEAD_BYTES;
    struct row_values rows = {};
    if (queries) rows = row_values_of(b, work, group);
    phase_wait(p.held_full, 0);
    for (int step = 0, steps = steps_of(work); step < steps; step++) {
        int row = row_of_step(work, step);
        const unsigned char *first = slot_at(p.first, step), *second = slot_at(p.second, step);
        const struct query_values *values = p.values + step % p.first.full.count;
        float s[1][GROUP_SUMS], ds[1][GROUP_SUMS];
        uint32_t a[1][GROUP_ROWS / 16][4];
        wait_for_step(p.first.full, step);
        if (queries ? row >= begin + GROUP_ROWS : row + GROUP_ROWS <= begin) {
            /* all keys are after all queries */
            wait_for_step(p.second.full, step);
            warp_arrives(p.second.empty, step);
            warp_arrives(p.first.empty, step);
            continue;
        }
        group_fence();
        start_scores<T, D, 1>(s, held, first);
        if (SUMS != VALUE_SUMS) {
            wait_for_step(p.second.full, step);
            group_fence();
            start_scores<T, D, 1>(ds, held + HEAD_BYTES, second);
        }
        group_wait<SUMS == VALUE_SUMS ? 0 : 1>();
        if (queries)
            row_probabilities<LIMITED>(s[0], b, rows, work.of.batch, begin + warp_in_group() * 16,
                                       row);
        else probabilities<T, LIMITED>(s[0], b, values, work.of.batch, begin, row / GROUP_ROWS);
        /* A loop here keeps the compiler from waiting for dP before the exponentials. Except for dV
         * its barrier has been passed. */
        wait_for_step(p.second.full, step);
        if (SUMS != VALUE_SUMS) {
            group_wait<0>();
            warp_arrives(p.second.empty, step);
        } else warp_arrives(p.first.empty, step);
        if (SUMS == KEY_SUMS) score_gradients(ds[0], s[0], values);
#pragma unroll
        for (int i = 0; queries && i < GROUP_SUMS; i++)
            ds[0][i] = s[0][i] * (ds[0][i] - rows.delta[i / 2 % 2]);
        round_to<T>(a[0], SUMS == VALUE_SUMS ? s[0] : ds[0]);
        group_fence();
        start_sums<T, D, 1>(sum, a, SUMS == VALUE_SUMS ? second : first);
        group_wait<0>();
        warp_arrives(SUMS == VALUE_SUMS ? p.second.empty : p.first.empty, step);
    }
}

/* One of the three sums for BLOCK_KEYS rows. group: for attention_work. */
template <typename T, int SUMS, bool LIMITED>
static __global__ void __launch_bounds__(THREADS, 1)
    wide_gradients_kernel(const struct backward b, const __grid_constant__ CUtensorMap qkv,
                          const __grid_constant__ CUtensorMap dout,
                          const __grid_constant__ CUtensorMap values, int group) {
    DYNAMIC_TILES(memory);
    struct places p = places_of<SUMS>(memory);
    bool fetches = threadIdx.x == GROUPS * GROUP_THREADS;
    if (fetches) {
        tensor_map_prefetch(&qkv);
        tensor_map_prefetch(&dout);
        tensor_map_prefetch(&values);
    }
    if (threadIdx.x == 0) init_barriers(p);
    struct block_work work = work_of<SUMS, LIMITED>(b, group);
    __syncthreads();
    if (group_of_warps() == GROUPS) {
        group_gives_registers<SERVICE_REGISTERS>();
        struct maps maps = {&qkv, &dout, &values};
        if (fetches) fetch_all<SUMS>(p, b, work, maps);
        return;
    }
    group_takes_registers<REGISTERS>();
    float sum[D / TILE_VALUES][GROUP_SUMS] = {};
    add_steps<T, SUMS, LIMITED>(sum, p, b, work);
    int own = group_of_warps(), first = work.of.tile * BLOCK_KEYS + own * GROUP_ROWS;
    int column = work.of.head * D;
    if (SUMS != QUERY_SUMS) column += b.out_stride;
    if (SUMS == VALUE_SUMS) column += b.kv_heads * D;
    float factor = SUMS == VALUE_SUMS ? 1 : b.scale;
    const float factors[2] = {factor, factor};
    store_rows<T, D>(
        (T *)b.dqkv + ((int64_t)work.of.batch * b.sequence + first) * b.stride + column, b.stride,
        b.sequence - first, (T *)(p.held + own * layout<SUMS>::HELD * HEAD_BYTES), sum, factors,
        sums_place(b, work.of, (int)threadIdx.x / WARP, column), b.track_amax);
}

template <typename T, int SUMS, bool LIMITED>
static void launch_sums(struct backend *be, const struct backward &b, const struct maps &maps,
                        int heads, int group) {
    const void *kernel = (const void *)wide_gradients_kernel<T, SUMS, LIMITED>;
    size_t bytes = layout<SUMS>::BYTES;
    if (!cuda_shared(be, kernel, bytes, "attention_backward")) return;
    LAUNCH((wide_gradients_kernel<T, SUMS, LIMITED>), (unsigned)(b.tiles * b.batch * heads),
           THREADS, bytes, cuda_state(be)->compute, b, *maps.qkv, *maps.dout, *maps.values, group);
}

template <typename T, bool LIMITED>
static void launch_with(struct backend *be, const struct attention_backward_args *args,
                        const struct attention_shape *shape) {
    struct backward b = attention_backward_begin(be, args, shape);
    CUtensorMap qkv, dout, values;
    const struct maps maps = {&qkv, &dout, &values};
    int rows = b.tiles * (BLOCK_KEYS / VALUE_ROWS);
    int group = attention_group(shape, args->qkv->dtype, shape->batch * shape->heads);
    if (!attention_wgmma_map(&qkv, be, args->qkv, b.heads + 2 * b.kv_heads, shape) ||
        !attention_wgmma_map(&dout, be, args->dout, b.heads, shape) ||
        !attention_wgmma_map_floats(&values, be, (const float *)b.values, 2 * VALUE_ROWS, rows,
                                    b.heads, b.batch))
        return;
    launch_sums<T, QUERY_SUMS, LIMITED>(be, b, maps, b.heads, group);
    launch_sums<T, KEY_SUMS, LIMITED>(be, b, maps, b.kv_heads, b.kv_group);
    launch_sums<T, VALUE_SUMS, LIMITED>(be, b, maps, b.kv_heads, b.kv_group);
    attention_backward_end(be, &b, args, shape);
}

template <typename T, int WIDTH>
static void launch(struct backend *be, const struct attention_backward_args *args,
                   const struct attention_shape *shape) {
    if (args->first_keys) launch_with<T, true>(be, args, shape);
    else launch_with<T, false>(be, args, shape);
}

void attention_wgmma_wide_backward(struct backend *be, const struct attention_backward_args *args,
                                   const struct attention_shape *shape) {
    assert(args->dqkv->dtype == args->qkv->dtype && args->dout->dtype == args->qkv->dtype);
    BY_TYPE(launch, args->qkv->dtype, D, be, args, shape);
}
