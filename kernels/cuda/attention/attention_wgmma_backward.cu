/* The gradient of attention on Hopper's tensor cores, with five products in one kernel:
 * attention_mma_backward.cu has the formulas, attention_hopper_backward.h the order of dQ's sums;
 * for sm_90a only.
 *
 * Each of two groups of warps holds 64 keys. In a step, with the next queries:
 *
 *     S' = K Q'    dP' = V dO'    dV += P' dO    dK += dS' Q    dQ = dS K
 *
 * P' and dS' leave the accumulators of wgmma as A of dV and dK, in registers. dQ needs the keys of
 * both groups: dS' also goes to shared memory, where each group reads both halves for its part of
 * dQ. dP' is multiplied during the exponentials, dV and dK while dS' is stored and the other
 * group's is awaited, and the scores of the next step while dQ is added to memory. */
#include "kernels/cuda/attention/attention_wgmma_backward.h"

enum {
    GROUPS = BLOCK_KEYS / GROUP_ROWS,
    WARPS = GROUPS * GROUP_THREADS / WARP,  /* the warps that multiply */
    THREADS = (GROUPS + 1) * GROUP_THREADS, /* and a group that fetches, takes and gives turns */
    REGISTERS = 240,                        /* per thread that multiplies */
    SERVICE_REGISTERS = 24,                 /* per other thread */
    DS_BUFFERS = 2,
    PART = GROUP_ROWS * TILE_VALUES /* values of dQ that a group adds in a step */
};

/* A step takes 128 queries of 64 values, or 64 of 128: two tiles, and two of gradients of
 * outputs. */
template <int D> struct layout {
    enum {
        HALVES = BLOCK_KEYS / D, /* tiles of 64 queries in a step */
        QUERIES = HALVES * GROUP_ROWS,
        TILES = BLOCK_KEYS / QUERIES,   /* steps on the diagonal */
        SLOTS = D == 64 ? 3 : 4,        /* the ring has as many as fit */
        HELD = 2 * head_tile<D>::BYTES, /* bytes of a group's keys and values */
        VALUES = head_tile<D>::BYTES,   /* bytes from held keys to values */
        DOUT = 2 * TILE_BYTES,          /* bytes from streamed queries to gradients of outputs */
        SLOT = 2 * DOUT,
        DS = HALVES * GROUPS * TILE_BYTES, /* bytes of a buffer of dS' */
        SLOTS_AT = GROUPS * HELD,
        DS_AT = SLOTS_AT + SLOTS * SLOT,
        ROW_VALUES_AT = DS_AT + DS_BUFFERS * DS,
        BARRIERS_AT = ROW_VALUES_AT + SLOTS * HALVES * (int)sizeof(struct query_values),
        INTS_AT = BARRIERS_AT + (2 * SLOTS + 3 * DS_BUFFERS + 1) * 8,
        BYTES = INTS_AT + 4 * 4
    };
};

/* Addresses in shared memory. */
template <int D> struct places {
    unsigned char *memory;
    struct step_barriers full;    /* the step's slot has been fetched */
    struct step_barriers written; /* dS' of both groups is in the step's buffer */
    struct step_barriers turn;    /* the block may add to dQ of the step's queries */
    struct step_barriers given;   /* the turn has been given on */
    struct step_barriers done;    /* all warps have multiplied and added */
    phase_barrier *held_full;
    int *turns; /* the semaphores' values of the last two steps */
    int *work;  /* for take_work */
};
template <int D>
static __device__ __forceinline__ struct places<D> places_of(unsigned char *memory) {
    typedef struct layout<D> at;
    phase_barrier *b = (phase_barrier *)(memory + at::BARRIERS_AT);
    int *ints = (int *)(memory + at::INTS_AT);
    phase_barrier *of_buffers = b + 2 * at::SLOTS;
    struct places<D> places = {};
    places.memory = memory;
    places.full = {b, at::SLOTS};
    places.done = {b + at::SLOTS, at::SLOTS};
    places.written = {of_buffers, DS_BUFFERS};
    places.turn = {of_buffers + DS_BUFFERS, DS_BUFFERS};
    places.held_full = of_buffers + 2 * DS_BUFFERS;
    places.given = {places.held_full + 1, DS_BUFFERS};
    places.turns = ints;
    places.work = ints + DS_BUFFERS;
    return places;
}
/* Called by one thread. */
template <int D>
static __device__ __forceinline__ void init_barriers(const struct places<D> &p) {
    for (int i = 0; i < layout<D>::SLOTS; i++) {
        phase_init(p.full.first + i, 1);
        phase_init(p.done.first + i, WARPS);
    }
    for (int i = 0; i < DS_BUFFERS; i++) {
        phase_init(p.written.first + i, WARPS);
        phase_init(p.turn.first + i, 1);
        phase_init(p.given.first + i, 1);
    }
    phase_init(p.held_full, 1);
    phase_init_done();
}

/* Keys of a group, then values. */
template <int D>
static __device__ __forceinline__ unsigned char *keys_of(const struct places<D> &p, int group) {
    return p.memory + group * layout<D>::HELD;
}
/* Slot of a step: queries, then gradients of outputs. */
template <int D>
static __device__ __forceinline__ unsigned char *slot_at(const struct places<D> &p, int step) {
    return p.memory + layout<D>::SLOTS_AT + step % layout<D>::SLOTS * layout<D>::SLOT;
}
template <int D>
static __device__ __forceinline__ struct query_values *row_values(const struct places<D> &p,
                                                                  int step) {
    return (struct query_values *)(p.memory + layout<D>::ROW_VALUES_AT) +
           step % layout<D>::SLOTS * layout<D>::HALVES;
}
/* Tile of dS' of a step: rows are the keys of group `group`, columns are queries of half `half`. */
template <int D>
static __device__ __forceinline__ unsigned char *ds_tile(const struct places<D> &p, int step,
                                                         int half, int group) {
    return p.memory + layout<D>::DS_AT + step % DS_BUFFERS * layout<D>::DS +
           (half * GROUPS + group) * TILE_BYTES;
}

/* ---- work of a block */

/* The held keys, and the queries that see them: the tiles of QUERIES from the last to the first, a
 * step for each head that reads the keys. Heads are the inner loop, so that blocks of other keys,
 * which see fewer queries, come to the same tiles at the same time. */
struct block_work {
    struct held of;
    int first_head, readers; /* query heads */
    int first, tiles;        /* tiles of a head */
};
static __device__ __forceinline__ int steps_of(const struct block_work &work) {
    return work.tiles * work.readers;
}
static __device__ __forceinline__ int head_of_step(const struct block_work &work, int step) {
    return work.first_head + step % work.readers;
}
static __device__ __forceinline__ int tile_of_step(const struct block_work &work, int step) {
    return work.first + work.tiles - 1 - step / work.readers;
}

struct maps {
    const CUtensorMap *qkv, *dout, *values;
};

/* Fetches the keys and values, and each step's queries with their gradients and values. Called by
 * one thread. */
template <int D>
static __device__ __forceinline__ void
fetch_all(const struct places<D> &p, const struct backward &b, const struct block_work &work,
          const struct maps &maps) {
    typedef struct layout<D> at;
    int batch = work.of.batch, key_head = b.heads + work.of.head;
    phase_arrive_expecting(p.held_full, GROUPS * at::HELD);
    for (int i = 0; i < GROUPS; i++) {
        int row = work.of.tile * BLOCK_KEYS + i * GROUP_ROWS;
        fetch_rows<D>(keys_of(p, i), maps.qkv, key_head, row, batch, p.held_full);
        fetch_rows<D>(keys_of(p, i) + at::VALUES, maps.qkv, key_head + b.kv_heads, row, batch,
                      p.held_full);
    }
    for (int step = 0; step < steps_of(work); step++) {
        int head = head_of_step(work, step), tile = tile_of_step(work, step);
        unsigned char *to = slot_at(p, step);
        phase_barrier *full = barrier_of(p.full, step);
        if (step >= at::SLOTS) wait_for_step(p.done, step - at::SLOTS);
        phase_arrive_expecting(full, at::SLOT + at::HALVES * (int)sizeof(struct query_values));
        for (int i = 0; i < 2; i++) {
            int column = D == 64 ? 0 : i * TILE_VALUES;
            int row = tile * at::QUERIES + (D == 64 ? i * GROUP_ROWS : 0);
            tensor_copy(to + i * TILE_BYTES, maps.qkv, column, head, row, batch, full);
            tensor_copy(to + at::DOUT + i * TILE_BYTES, maps.dout, column, head, row, batch, full);
        }
        for (int i = 0; i < at::HALVES; i++)
            tensor_copy(row_values(p, step) + i, maps.values, 0, tile * at::HALVES + i, head, batch,
                        full);
    }
}

/* Semaphore of dQ of a step's queries. */
template <int D>
static __device__ __forceinline__ int *semaphore_of_step(const struct backward &b,
                                                         const struct block_work &work, int step) {
    typedef struct layout<D> at;
    int head = work.of.batch * b.heads + head_of_step(work, step);
    int tile = head * b.tiles * at::TILES + tile_of_step(work, step);
    return b.semaphores + tile * at::HALVES;
}

/* Waits for the block's turn to add to dQ of each step's queries, up to DS_BUFFERS steps ahead.
 * Called by one thread. */
template <int D>
static __device__ __forceinline__ void
take_turns(const struct places<D> &p, const struct backward &b, const struct block_work &work) {
    for (int step = 0; step < steps_of(work); step++) {
        if (step >= DS_BUFFERS) wait_for_step(p.given, step - DS_BUFFERS);
        const int *semaphore = semaphore_of_step<D>(b, work, step);
        p.turns[step % DS_BUFFERS] =
            semaphore_wait(semaphore, semaphore_value(work.of.tile, false));
        phase_arrive(barrier_of(p.turn, step));
    }
}

/* Gives each turn on once all warps have added. Turns ahead wait for it: it must not fall behind
 * the warps by two phases of their barrier, whose parities are equal. Called by one thread. */
template <int D>
static __device__ __forceinline__ void
give_turns(const struct places<D> &p, const struct backward &b, const struct block_work &work) {
    for (int step = 0; step < steps_of(work); step++) {
        wait_for_step(p.done, step);
        semaphore_set(semaphore_of_step<D>(b, work, step), semaphore_value(work.of.tile + 1, true));
        phase_arrive(barrier_of(p.given, step));
    }
}

/* ---- products */

template <int ADD>
static __device__ __forceinline__ void transposed_product(float *d, uint64_t a, uint64_t b,
                                                          __half) {
    group_product_f16_transposed<1, ADD>(d, a, b);
}
template <int ADD>
static __device__ __forceinline__ void transposed_product(float *d, uint64_t a, uint64_t b,
                                                          __nv_bfloat16) {
    group_product_bf16_transposed<1, ADD>(d, a, b);
}

/* Starts dq = dS K, the group's part: all 64 values of its half of 128 queries, or its half of the
 * values of 64 queries. */
template <typename T, int D>
static __device__ __forceinline__ void start_query_sums(float dq[GROUP_SUMS],
                                                        const struct places<D> &p, int step) {
    int group = group_of_warps();
    const unsigned char *ds = ds_tile(p, step, D == 64 ? group : 0, 0);
    const unsigned char *keys = keys_of(p, 0) + (D == 64 ? 0 : group * TILE_BYTES);
#pragma unroll
    for (int i = 0; i < BLOCK_KEYS / 16; i++) { /* 16 keys are 2048 bytes */
        uint64_t down = (uint64_t)(i % 4 * 2048 / 16);
        uint64_t a = tile_descriptor(ds) + (uint64_t)(i / 4 * TILE_BYTES / 16) + down;
        uint64_t b = tile_descriptor(keys) + (uint64_t)(i / 4 * layout<D>::HELD / 16) + down;
        if (i == 0) transposed_product<0>(dq, a, b, T());
        else transposed_product<1>(dq, a, b, T());
    }
    group_commit();
}

/* Stores the warp's rows of dS' of a tile. */
static __device__ __forceinline__ void store_ds(unsigned char *tile,
                                                const uint32_t a[GROUP_ROWS / 16][4]) {
    int thread = reread_thread_index(), lane = thread % WARP;
    int row = thread % GROUP_THREADS / WARP * 16 + lane % 16, chunk = lane / 16;
    shared_pointer at = shared_pointer_to(tile) + tile_offset<__half, TILE_VALUES>(row, chunk) * 2;
#pragma unroll
    for (int i = 0; i < GROUP_ROWS / 16; i++) /* the next two chunks of the row */
        stmatrix_x4((shared_pointer)((uintptr_t)at ^ (uintptr_t)(i * 32)), a[i]);
}

/* Place in memory of the thread's part of dQ of a tile of QUERIES, in the order of accumulators.
 * head: of B * H. */
template <int D>
static __device__ __forceinline__ float *sums_of(const struct backward &b, int head, int tile) {
    int thread = reread_thread_index();
    int part = (head * b.tiles * layout<D>::TILES + tile) * GROUPS + thread / GROUP_THREADS;
    return b.dq + (int64_t)part * PART + thread % GROUP_THREADS / WARP * (PART / 4) +
           thread % WARP * 4;
}

/* Adds dq to the sums in memory, or begins them; turn: see semaphore_wait. */
static __device__ __forceinline__ void add_queries(float *to, const float dq[GROUP_SUMS],
                                                   int turn) {
    if (turn % 2) {
#pragma unroll
        for (int i = 0; i < GROUP_SUMS; i += 4) add_to_global(to + i * WARP, dq + i);
    } else {
#pragma unroll
        for (int i = 0; i < GROUP_SUMS; i += 4)
            *(float4 *)(to + i * WARP) = make_float4(dq[i], dq[i + 1], dq[i + 2], dq[i + 3]);
    }
}

/* Adds to dk and dv of the group's keys the queries of all steps, and adds their dQ to memory; dk
 * is still to be multiplied by scale. */
template <typename T, int D, bool LIMITED>
static __device__ __forceinline__ void
sum_over_queries(float dk[D / TILE_VALUES][GROUP_SUMS], float dv[D / TILE_VALUES][GROUP_SUMS],
                 const struct places<D> &p, const struct backward &b,
                 const struct block_work &work) {
    typedef struct layout<D> at;
    float s[at::HALVES][GROUP_SUMS], ds[at::HALVES][GROUP_SUMS], dq[GROUP_SUMS];
    uint32_t probability[at::HALVES][GROUP_ROWS / 16][4], a[at::HALVES][GROUP_ROWS / 16][4];
    int group = group_of_warps(), key = work.of.tile * BLOCK_KEYS + group * GROUP_ROWS;
    int steps = steps_of(work), tile = work.first + work.tiles - 1, reader = 0;
    const unsigned char *keys = keys_of(p, group);
    wait_for_step(p.full, 0);
    group_fence();
    start_scores<T, D, at::HALVES>(s, keys, slot_at(p, 0));
    for (int step = 0; step < steps; step++) {
        const unsigned char *queries = slot_at(p, step);
        const struct query_values *values = row_values(p, step);
        group_wait<0>();
        group_fence();
        start_scores<T, D, at::HALVES>(ds, keys + at::VALUES, queries + at::DOUT);
#pragma unroll
        for (int i = 0; i < at::HALVES; i++)
            probabilities<T, LIMITED>(s[i], b, values + i, work.of.batch, key,
                                      tile * at::HALVES + i);
        /* A loop here keeps the compiler from waiting for dP' before the exponentials. This barrier
         * has been passed: both groups stored dS' of the last step after they had multiplied that
         * of the step before, so that its buffer is free. */
        if (step >= DS_BUFFERS) wait_for_step(p.done, step - DS_BUFFERS);
        group_wait<0>();
#pragma unroll
        for (int i = 0; i < at::HALVES; i++) {
            score_gradients(ds[i], s[i], values + i);
            round_to<T>(probability[i], s[i]);
            round_to<T>(a[i], ds[i]);
        }
        group_fence();
        start_sums<T, D, at::HALVES>(dv, probability, queries + at::DOUT);
#pragma unroll
        for (int i = 0; i < at::HALVES; i++) store_ds(ds_tile(p, step, i, group), a[i]);
        shared_stores_done();
        warp_arrives(p.written, step);
        group_fence();
        start_sums<T, D, at::HALVES>(dk, a, queries);
        wait_for_step(p.written, step);
        group_wait<at::HALVES>(); /* for dV: the registers of P' are needed */
        group_fence();
        start_query_sums<T, D>(dq, p, step);
        const unsigned char *next = keys; /* at the end, a product without a use */
        if (step + 1 < steps) {
            wait_for_step(p.full, step + 1);
            next = slot_at(p, step + 1);
        }
        group_fence();
        start_scores<T, D, at::HALVES>(s, keys, next);
        wait_for_step(p.turn, step);
        int turn = __shfl_sync(0xffffffffu, p.turns[step % DS_BUFFERS], 0);
        group_wait<1>();
        int head = work.of.batch * b.heads + work.first_head + reader;
        add_queries(sums_of<D>(b, head, tile), dq, turn);
        warp_arrives(p.done, step);
        if (++reader == work.readers) reader = 0, tile--;
    }
    group_wait<0>();
}

/* Rounds the group's part of dQ of the queries on the diagonal, whose last part this block has
 * added, and stores it, of each head that reads the block's keys. */
template <typename T, int D>
static __device__ __forceinline__ void
store_queries(const struct places<D> &p, const struct backward &b, const struct block_work &work) {
    typedef struct layout<D> at;
    int group = group_of_warps(), right = D == 64 ? 0 : group, down = D == 64 ? group : 0;
    const float factors[2] = {b.scale, b.scale};
    for (int i = 0; i < work.readers * at::TILES; i++) {
        int head = work.first_head + i / at::TILES, tile = work.first + i % at::TILES;
        int column = head * D + right * TILE_VALUES;
        int first = tile * at::QUERIES + down * GROUP_ROWS;
        int64_t row = (int64_t)work.of.batch * b.sequence + first;
        const float *from = sums_of<D>(b, work.of.batch * b.heads + head, tile);
        float dq[1][GROUP_SUMS];
#pragma unroll
        for (int j = 0; j < GROUP_SUMS; j += 4) {
            float4 sum = __ldcg((const float4 *)(from + j * WARP));
            dq[0][j] = sum.x, dq[0][j + 1] = sum.y, dq[0][j + 2] = sum.z, dq[0][j + 3] = sum.w;
        }
        store_rows<T, TILE_VALUES>(
            (T *)b.dqkv + row * b.stride + column, b.stride, b.sequence - first,
            (T *)(keys_of(p, group) + at::VALUES), dq, factors,
            sums_place(b, work.of, first % BLOCK_KEYS / 16 + warp_in_group(), column),
            b.track_amax);
    }
}

/* Computes dK and dV of the group's keys, and the group's parts of dQ. */
template <typename T, int D, bool LIMITED>
static __device__ __forceinline__ void
multiply_all(const struct places<D> &p, const struct backward &b, const struct block_work &work) {
    float dk[D / TILE_VALUES][GROUP_SUMS] = {}, dv[D / TILE_VALUES][GROUP_SUMS] = {};
    phase_wait(p.held_full, 0);
    sum_over_queries<T, D, LIMITED>(dk, dv, p, b, work);
    int group = group_of_warps(), first = work.of.tile * BLOCK_KEYS + group * GROUP_ROWS;
    int column = b.out_stride + work.of.head * D, valid = b.sequence - first;
    int rows = (int)threadIdx.x / WARP;
    const float scales[2] = {b.scale, b.scale}, ones[2] = {1, 1};
    T *to = (T *)b.dqkv + ((int64_t)work.of.batch * b.sequence + first) * b.stride + column;
    /* The other group may still multiply the group's keys, but not its values. */
    T *staged = (T *)(keys_of(p, group) + layout<D>::VALUES);
    store_rows<T, D>(to, b.stride, valid, staged, dk, scales, sums_place(b, work.of, rows, column),
                     b.track_amax);
    store_rows<T, D>(to + b.kv_heads * D, b.stride, valid, staged, dv, ones,
                     sums_place(b, work.of, rows, column + b.kv_heads * D), b.track_amax);
    store_queries<T, D>(p, b, work);
}

/* dK and dV of BLOCK_KEYS keys, and what they add to dQ. Two groups multiply; of the third, one
 * thread fetches, one waits for turns, and one gives them on. */
template <typename T, int D, bool LIMITED>
static __global__ void __launch_bounds__(THREADS, 1)
    gradients_kernel(const struct backward b, const __grid_constant__ CUtensorMap qkv,
                     const __grid_constant__ CUtensorMap dout,
                     const __grid_constant__ CUtensorMap values) {
    typedef struct layout<D> at;
    DYNAMIC_TILES(memory);
    struct places<D> p = places_of<D>(memory);
    bool fetches = threadIdx.x == GROUPS * GROUP_THREADS;
    if (fetches) {
        tensor_map_prefetch(&qkv);
        tensor_map_prefetch(&dout);
        tensor_map_prefetch(&values);
    }
    if (threadIdx.x == 0) init_barriers(p);
    struct held of = take_work(b, p.work);
    int begin = of.tile * BLOCK_KEYS, end = b.sequence; /* queries that see the keys */
    if (LIMITED)
        end = last_reader(b.first_keys + (int64_t)of.batch * b.sequence, begin, b.sequence,
                          begin + BLOCK_KEYS);
    int readers = b.heads / b.kv_heads, tiles = (end - begin + at::QUERIES - 1) / at::QUERIES;
    struct block_work work = {of, of.head * readers, readers, begin / at::QUERIES, tiles};
    if (group_of_warps() < GROUPS) {
        group_takes_registers<REGISTERS>();
        multiply_all<T, D, LIMITED>(p, b, work);
        return;
    }
    group_gives_registers<SERVICE_REGISTERS>();
    struct maps maps = {&qkv, &dout, &values};
    if (fetches) fetch_all<D>(p, b, work, maps);
    else if (threadIdx.x == GROUPS * GROUP_THREADS + WARP) take_turns<D>(p, b, work);
    else if (threadIdx.x == GROUPS * GROUP_THREADS + 2 * WARP) give_turns<D>(p, b, work);
}

template <typename T, int D, bool LIMITED>
static void launch_with(struct backend *be, const struct attention_backward_args *args,
                        const struct attention_shape *shape) {
    struct backward b = attention_backward_begin(be, args, shape);
    CUtensorMap qkv, dout, values;
    int rows = b.tiles * (BLOCK_KEYS / VALUE_ROWS);
    if (!attention_wgmma_map(&qkv, be, args->qkv, b.heads + 2 * b.kv_heads, shape) ||
        !attention_wgmma_map(&dout, be, args->dout, b.heads, shape) ||
        !attention_wgmma_map_floats(&values, be, (const float *)b.values, 2 * VALUE_ROWS, rows,
                                    b.heads, b.batch) ||
        !cuda_shared(be, (const void *)gradients_kernel<T, D, LIMITED>, layout<D>::BYTES,
                     "attention_backward"))
        return;
    unsigned blocks = (unsigned)(b.tiles * b.batch * b.kv_heads);
    LAUNCH((gradients_kernel<T, D, LIMITED>), blocks, THREADS, layout<D>::BYTES,
           cuda_state(be)->compute, b, qkv, dout, values);
    attention_backward_end(be, &b, args, shape);
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
