/* Parts of both kernels of attention_wgmma_backward.cu: the rows that a block holds, their place in
 * shared memory, and the products with a streamed tile. */
#pragma once

#include "kernels/cuda/attention_wgmma.h"

enum {
    GROUPS = 2,
    HELD_ROWS = GROUPS * GROUP_ROWS,
    THREADS = GROUPS * GROUP_THREADS,
    WARPS = THREADS / WARP
};

/* Values of 64 queries that the kernel for keys reads: -lse log2(e), -infinity beyond the end; and
 * delta. */
struct query_values {
    float x[GROUP_ROWS], delta[GROUP_ROWS];
};
enum { VALUES_BYTES = sizeof(struct query_values) };

/* Tile that a block holds: rows from tile * HELD_ROWS on, in one head. */
struct held {
    int batch, head, tile;
};

template <int D> struct layout {
    enum {
        SECOND =
            head_tile<D>::BYTES, /* bytes from held queries or keys to gradients of out or values */
        RING_AT = GROUPS * head_tile<D>::SLOT,
        VALUES_AT = RING_AT + RING * head_tile<D>::SLOT,
        BARRIERS_AT = VALUES_AT + RING * VALUES_BYTES,
        KEPT_AT = BARRIERS_AT + (2 * RING + 1) * 8,
        BYTES = KEPT_AT + sizeof(struct held)
    };
};

template <typename T> struct backward {
    T *dqkv;
    const T *out;
    const float *lse;
    const int32_t *first_keys;   /* [B, sequence], or NULL */
    struct query_values *values; /* [B, H, tiles * GROUPS] */
    float *sums; /* optional [B, tiles, WARPS, stride]: sums of 16 rows of dqkv each */
    int sequence, heads, kv_heads, batch, tiles;
    int group, kv_group;    /* for attention_work, of query heads and of key heads */
    int stride, out_stride; /* row stride of dqkv, of out */
    float scale, factor;    /* 1 / sqrt(D); the same times log2(e) */
};

static __device__ __forceinline__ int warp_in_group() {
    return (int)threadIdx.x % GROUP_THREADS / WARP;
}

/* Destination of the warp's part of the column sums, from a head's first column on, or NULL without
 * column sums. */
template <typename T>
static __device__ __forceinline__ float *sums_place(const struct backward<T> &b, struct held of,
                                                    int64_t column) {
    if (!b.sums) return NULL;
    int64_t row = (int64_t)(of.batch * b.tiles + of.tile) * WARPS + (int)threadIdx.x / WARP;
    return b.sums + row * b.stride + column;
}

/* Shared memory of both kernels. */
struct places {
    struct ring ring;
    unsigned char *own;          /* the group's held rows, and their second half */
    struct query_values *values; /* RING of them, one per slot */
    phase_barrier *held_full;
};
template <int D> static __device__ __forceinline__ struct places places_of(unsigned char *shared) {
    typedef struct layout<D> layout;
    phase_barrier *barriers = (phase_barrier *)(shared + layout::BARRIERS_AT);
    struct places places = {{shared + layout::RING_AT, barriers, barriers + RING},
                            shared + group_of_warps() * head_tile<D>::SLOT,
                            (struct query_values *)(shared + layout::VALUES_AT),
                            barriers + 2 * RING};
    return places;
}

/* Initializes the barriers and starts to copy the held tiles, from row `first` on: of `head` in
 * `map`, and of `second_head` in `second`. */
template <int D>
static __device__ __forceinline__ void hold(const struct places &places, const CUtensorMap *map,
                                            int head, const CUtensorMap *second, int second_head,
                                            int batch, int first) {
    if (threadIdx.x == 0) {
        ring_init(places.ring, WARPS);
        phase_init(places.held_full, 1);
        phase_init_done();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        phase_arrive_expecting(places.held_full, GROUPS * head_tile<D>::SLOT);
        for (int i = 0; i < GROUPS; i++) { /* thread 0 is in the first group */
            unsigned char *to = places.own + i * head_tile<D>::SLOT;
            int row = first + i * GROUP_ROWS;
            fetch_rows<D>(to, map, head, row, batch, places.held_full);
            fetch_rows<D>(to + layout<D>::SECOND, second, second_head, row, batch,
                          places.held_full);
        }
    }
    __syncwarp();
}

/* Starts the products of the held tiles with step `step`: s, and ds of the second halves. */
template <typename T, int D>
static __device__ __forceinline__ void start_both(float s[GROUP_SUMS], float ds[GROUP_SUMS],
                                                  const struct places &places, int step) {
    const unsigned char *slot = slot_of<D>(places.ring, step);
    start_scores<T, D>(s, places.own, slot);
    start_scores<T, D>(ds, places.own + layout<D>::SECOND, slot + layout<D>::SECOND);
}
