/* Parts of attention_wgmma_backward.cu: shared memory, the streamed queries, and products. */
#pragma once

#include "kernels/cuda/attention_backward.h"
#include "kernels/cuda/attention_wgmma.h"

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

static __device__ __forceinline__ int warp_in_group() {
    return (int)threadIdx.x % GROUP_THREADS / WARP;
}

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
    shared_pointer at = shared_pointer_to(tile) + tile_offset<TILE_VALUES>(row, chunk) * 2;
#pragma unroll
    for (int i = 0; i < GROUP_ROWS / 16; i++) /* the next two chunks of the row */
        stmatrix_x4((shared_pointer)((uintptr_t)at ^ (uintptr_t)(i * 32)), a[i]);
}
