/* Attention on Hopper's tensor cores, forward: FlashAttention-3 (Shah and others 2024,
 * arXiv:2407.08608) in its causal form, with wgmma and tensor copies; for sm_90a only.
 *
 * Each of two groups of warps has 64 queries, whose scores and outputs are accumulators of wgmma;
 * the softmax is that of attention_mma_forward.cu. The scores of the next step are multiplied
 * before the outputs of this one, and the exponentials overlap with the latter. The exponentials of
 * one group also overlap with the products of another: with D = 64, of the other block, too. With
 * D = 128 a step has 128 keys, so that a read of the queries from shared memory serves twice as
 * many products. With D = 256 outputs take the registers for that.
 *
 * Keys and values come through a ring of slots, in the order of their use. While the keys of a step
 * are multiplied, the values of the step before are still needed: with D = 256, where three slots
 * for keys and values do not fit, each has slots of its own, and keys leave theirs earlier.
 *
 * Thread 0 fetches a later step besides its other work: a separate warp for that would take
 * registers from the others (they are allocated to four warps at a time). */
#include "kernels/cuda/attention/attention_wgmma.h"

enum { SLACK = 8, GROUPS = 2, QUERIES = GROUPS * GROUP_ROWS, THREADS = GROUPS * GROUP_THREADS };

template <int D> struct layout {
    enum {
        BLOCKS = D == 64 ? 2 : 1, /* per multiprocessor */
        TILES = D == 128 ? 2 : 1, /* tiles of 64 keys in a step */
        KEYS = TILES * GROUP_ROWS,
        APART = D == 256, /* keys and values have slots of their own */
        EACH = 1 + APART, /* slots that a step takes */
        SLOTS = D == 64    ? 4
                : D == 128 ? 3
                           : 5,          /* the ring has as many as fit */
        AHEAD = SLOTS - (APART ? 3 : 2), /* slots that are filled before the first step */
        BYTES_OF_KEYS = TILES * head_tile<D>::BYTES,
        VALUES = APART ? 0 : BYTES_OF_KEYS, /* bytes to the values from where their slot begins */
        SLOT = 2 * BYTES_OF_KEYS / EACH,
        SLOTS_AT = GROUPS * head_tile<D>::BYTES, /* after the queries */
        BARRIERS_AT = SLOTS_AT + SLOTS * SLOT,
        BYTES = BARRIERS_AT + (2 * SLOTS + 1) * 8
    };
};

struct forward {
    float *lse;
    struct amax *track_amax;   /* optional, of out */
    const int32_t *first_keys; /* [B, sequence], or NULL */
    int sequence, heads, kv_heads, batch, tiles, group;
    float factor; /* scale * log2(e) */
};

/* Slots for keys and values, in shared memory. Their contents are numbered in the order of use, and
 * so are the barriers: keys and values of a step together have its number. With slots apart, the
 * order is the keys of step 0, those of 1, the values of 0, keys 2, values 1, ..., and the last two
 * values.
 */
template <int D> struct ring {
    unsigned char *slots;
    struct step_barriers full, empty;
};
template <int D>
static __device__ __forceinline__ unsigned char *slot_at(const struct ring<D> &ring, int number) {
    return ring.slots + number % layout<D>::SLOTS * layout<D>::SLOT;
}
template <int D> static __device__ __forceinline__ int keys_number(int step) {
    return !layout<D>::APART || step == 0 ? step : 2 * step - 1;
}
template <int D> static __device__ __forceinline__ int values_number(int step, int steps) {
    return !layout<D>::APART ? step : step == steps - 1 ? 2 * step + 1 : 2 * step + 2;
}

/* Keys and values of a head in the map of qkv, from tile `first` of 64 on; each step is the next
 * KEYS. */
struct key_source {
    const CUtensorMap *map;
    int head, value_head, batch, first, steps;
};

/* Starts to fetch the contents with this number, if there are so many; thread 0 does. Tiles of keys
 * are ordered as start_scores reads them. */
template <int D>
static __device__ __forceinline__ void fetch(const struct ring<D> &ring,
                                             const struct key_source &source, int number) {
    typedef struct layout<D> at;
    const int across = head_tile<D>::ACROSS, count = source.steps * at::EACH;
    if (threadIdx.x == 0 && number < count) {
        phase_barrier *full = barrier_of(ring.full, number);
        if (number >= at::SLOTS) wait_for_step(ring.empty, number - at::SLOTS);
        phase_arrive_expecting(full, at::SLOT);
        unsigned char *to = slot_at(ring, number);
        bool values = number == count - 1 || (number > 0 && number % 2 == 0);
        int step = !at::APART ? number : values ? (number - 1) / 2 : (number + 1) / 2;
#pragma unroll
        for (int i = 0; i < at::TILES * across; i++) {
            int tile = i / across, part = i % across, column = part * TILE_VALUES;
            int row = source.first * GROUP_ROWS + step * at::KEYS + tile * GROUP_ROWS;
            if (!at::APART || !values)
                tensor_copy(to + (part * at::TILES + tile) * TILE_BYTES, source.map, column,
                            source.head, row, source.batch, full);
            if (!at::APART || values)
                tensor_copy(to + at::VALUES + i * TILE_BYTES, source.map, column, source.value_head,
                            row, source.batch, full);
        }
    }
    __syncwarp();
}
/* Starts to refill the slot that step `step - 1` has released last. */
template <int D>
static __device__ __forceinline__ void fetch_ahead(const struct ring<D> &ring,
                                                   const struct key_source &source, int step) {
    fetch(ring, source, layout<D>::EACH * step + layout<D>::AHEAD);
}
/* With slots apart: starts to refill the other slot that step `step - 1` has released, at the end
 * of step `step`. Earlier, the group would wait for the other one's end of step `step - 1` before
 * it multiplies. */
template <int D>
static __device__ __forceinline__ void fetch_keys(const struct ring<D> &ring,
                                                  const struct key_source &source, int step) {
    if (layout<D>::APART) fetch(ring, source, 2 * step + layout<D>::AHEAD + 1);
}
/* Skips the steps from `step` to `end`, which the group does not need. */
template <int D>
static __device__ __forceinline__ void
skip_steps(const struct ring<D> &ring, const struct key_source &source, int step, int end) {
    for (; step < end; step++) {
        int values = values_number<D>(step, source.steps);
        fetch_ahead(ring, source, step);
        wait_for_step(ring.full, keys_number<D>(step));
        if (layout<D>::APART) {
            warp_arrives(ring.empty, keys_number<D>(step));
            wait_for_step(ring.full, values);
        }
        warp_arrives(ring.empty, values);
        fetch_keys(ring, source, step);
    }
}

/* Online softmax of the thread's two rows, 8 apart. */
struct softmax_rows {
    float shift[2]; /* used instead of the maximum; of factor q k' */
    float sum[2];   /* sum of exp2(factor q k' - shift) over this lane's columns */
};

/* Raises the shifts to the maxima of s (see attention_mma_forward.cu). Returns true if sums and
 * outputs have to be scaled down, by `shrink`. */
template <int TILES>
static __device__ __forceinline__ bool follow_maxima(struct softmax_rows *rows, float shrink[2],
                                                     const float s[TILES][GROUP_SUMS],
                                                     float factor) {
    bool any = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float max = -INFINITY, shift = rows->shift[half];
#pragma unroll
        for (int i = 0; i < TILES * GROUP_SUMS; i += 4) {
            const float *pair = s[i / GROUP_SUMS] + i % GROUP_SUMS + half * 2;
            max = fmaxf(max, fmaxf(pair[0], pair[1]));
        }
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2)) * factor;
        bool rises = max - shift > SLACK;
        any = any || rises;
        rows->shift[half] = rises ? max : shift;
        shrink[half] = exp2_approx(shift - rows->shift[half]);
        rows->sum[half] *= shrink[half];
    }
    return __any_sync(0xffffffffu, any);
}

/* s becomes exp2(factor s - shift), added to the sums. */
template <int TILES>
static __device__ __forceinline__ void exponentials(float s[TILES][GROUP_SUMS],
                                                    struct softmax_rows *rows, float factor) {
#pragma unroll
    for (int i = 0; i < TILES * GROUP_SUMS; i++) {
        float *score = s[i / GROUP_SUMS] + i % GROUP_SUMS;
        int half = i / 2 % 2;
        *score = exp2_approx(fmaf(*score, factor, -rows->shift[half]));
        rows->sum[half] += *score;
    }
}

/* Masks the keys that the warp's queries, from `first` on, do not see in step `step`. */
template <int D, bool LIMITED>
static __device__ __forceinline__ void
mask_step(float s[layout<D>::TILES][GROUP_SUMS], const struct forward &f,
          const struct key_source &source, int first, int step, bool diagonal) {
#pragma unroll
    for (int i = 0; i < layout<D>::TILES; i++) {
        int key = source.first * GROUP_ROWS + step * layout<D>::KEYS + i * GROUP_ROWS;
        if (diagonal && key + GROUP_ROWS > first) mask<false>(s[i], first - key);
        if (LIMITED)
            mask_before<false>(s[i], f.first_keys + (int64_t)source.batch * f.sequence,
                               f.sequence - 1, first, key);
    }
}

/* Processes the keys that a group sees, step by step; o and rows are complete afterwards. The
 * group's queries, from `first` on, see the steps from `begin` to `seen`, at least one. */
template <typename T, int D, bool LIMITED>
static __device__ __forceinline__ void
consume(float o[D / TILE_VALUES][GROUP_SUMS], struct softmax_rows *rows, const struct ring<D> &ring,
        const struct key_source &source, const unsigned char *all_queries, const struct forward &f,
        int first, int begin, int seen) {
    typedef struct layout<D> at;
    const unsigned char *queries = all_queries + group_of_warps() * head_tile<D>::BYTES;
    float s[at::TILES][GROUP_SUMS], shrink[2];
    uint32_t p[at::TILES][GROUP_ROWS / 16][4];
    float factor = f.factor;
    int warp_first = first + (int)threadIdx.x % GROUP_THREADS / WARP * 16;
    int keys = keys_number<D>(begin), values;
    fetch_ahead(ring, source, begin);
    wait_for_step(ring.full, keys);
    group_fence();
    start_scores<T, D, at::TILES>(s, queries, slot_at(ring, keys));
    group_wait<0>();
    if (at::APART) warp_arrives(ring.empty, keys);
    fetch_keys(ring, source, begin);
    mask_step<D, LIMITED>(s, f, source, warp_first, begin, seen == begin + 1);
    follow_maxima<at::TILES>(rows, shrink, s, factor);
    exponentials<at::TILES>(s, rows, factor);
#pragma unroll
    for (int i = 0; i < at::TILES; i++) round_to<T>(p[i], s[i]);
    if (seen > begin + 1) wait_for_step(ring.full, keys_number<D>(begin + 1));
    for (int step = begin + 1; step < seen; step++) {
        keys = keys_number<D>(step);
        values = values_number<D>(step - 1, step + 1); /* not of the last step */
        fetch_ahead(ring, source, step);
        if (at::APART) {
            keys = uniform(keys);
            values = uniform(values);
            queries = all_queries + group_of_warps() * head_tile<D>::BYTES;
            wait_for_step(ring.full, values);
        }
        group_fence();
        start_scores<T, D, at::TILES>(s, queries, slot_at(ring, keys));
        start_sums<T, D, at::TILES>(o, p, slot_at(ring, values) + at::VALUES);
        group_wait<at::TILES>();
        if (at::APART) warp_arrives(ring.empty, keys);
        mask_step<D, LIMITED>(s, f, source, warp_first, step, step == seen - 1);
        bool shrinks = follow_maxima<at::TILES>(rows, shrink, s, factor);
        exponentials<at::TILES>(s, rows, factor);
        /* This loop also keeps the compiler from waiting for the outputs earlier. */
        if (step + 1 < seen) wait_for_step(ring.full, keys_number<D>(step + 1));
        group_wait<0>();
        warp_arrives(ring.empty, values);
        fetch_keys(ring, source, step);
#pragma unroll
        for (int i = 0; i < at::TILES; i++) round_to<T>(p[i], s[i]);
#pragma unroll
        for (int i = 0; shrinks && i < D / TILE_VALUES * GROUP_SUMS; i++)
            o[i / GROUP_SUMS][i % GROUP_SUMS] *= shrink[i / 2 % 2];
    }
    values = values_number<D>(seen - 1, source.steps);
    if (at::APART) wait_for_step(ring.full, values);
    group_fence();
    start_sums<T, D, at::TILES>(o, p, slot_at(ring, values) + at::VALUES);
    group_wait<0>();
    warp_arrives(ring.empty, values);
}

/* Divides by the sums and stores, with the log-sum-exp; `valid` of the group's rows exist. */
template <typename T, int D>
static __device__ __forceinline__ void finish(T *out, int64_t out_stride, float *lse, int valid,
                                              T *staged, const float o[D / TILE_VALUES][GROUP_SUMS],
                                              const struct softmax_rows *rows,
                                              struct amax *track_amax) {
    int thread = (int)threadIdx.x % GROUP_THREADS, lane = thread % WARP;
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = thread / WARP * 16 + half * 8 + lane / 4;
        float sum = rows->sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane % 4 == 0 && row < valid) lse[row] = (rows->shift[half] + log2f(sum)) * LN_OF_2;
        inverse[half] = 1 / sum;
    }
    store_rows<T, D>(out, out_stride, valid, staged, o, inverse, NULL, track_amax);
}

template <typename T, int D, bool LIMITED>
static __global__ void __launch_bounds__(THREADS, layout<D>::BLOCKS)
    attention_forward_kernel(T *__restrict__ out, const __grid_constant__ CUtensorMap map,
                             const struct forward f) {
    typedef struct layout<D> at;
    DYNAMIC_TILES(queries);
    phase_barrier *barriers = (phase_barrier *)(queries + at::BARRIERS_AT);
    struct ring<D> ring = {
        queries + at::SLOTS_AT, {barriers, at::SLOTS}, { barriers + at::SLOTS, at::SLOTS }
    };
    phase_barrier *queries_full = barriers + 2 * at::SLOTS;
    if (threadIdx.x == 0) tensor_map_prefetch(&map);
    struct attention_work work =
        attention_work((int)blockIdx.x, f.tiles, f.batch * f.heads, f.group);
    int begin = (f.tiles - 1 - work.tile) * QUERIES; /* the last queries have the most keys */
    int end = begin + QUERIES < f.sequence ? begin + QUERIES : f.sequence;
    int batch = work.head / f.heads, head = work.head % f.heads;
    int group = group_of_warps(), first = begin + group * GROUP_ROWS;
    const int32_t *first_keys = f.first_keys + (int64_t)batch * f.sequence;
    int first_tile = LIMITED ? first_keys[begin] / GROUP_ROWS : 0;
    int keys = f.heads + head / (f.heads / f.kv_heads);
    int steps = (end - first_tile * GROUP_ROWS + at::KEYS - 1) / at::KEYS;
    struct key_source source = {&map, keys, keys + f.kv_heads, batch, first_tile, steps};
    if (threadIdx.x == 0) {
        for (int i = 0; i < at::SLOTS; i++) {
            phase_init(ring.full.first + i, 1);
            phase_init(ring.empty.first + i, THREADS / WARP);
        }
        phase_init(queries_full, 1);
        phase_init_done();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        phase_arrive_expecting(queries_full, GROUPS * head_tile<D>::BYTES);
        for (int i = 0; i < GROUPS; i++)
            fetch_rows<D>(queries + i * head_tile<D>::BYTES, &map, head, begin + i * GROUP_ROWS,
                          batch, queries_full);
    }
    __syncwarp();
    for (int number = 0; number < at::AHEAD; number++) fetch(ring, source, number);
    int seen = first < f.sequence ? (first - first_tile * GROUP_ROWS) / at::KEYS + 1 : 0;
    if (seen > 0) {
        /* A row may see no key of the first tiles: a finite shift then leaves its sum 0. */
        const float lowest = LIMITED ? -1e30f : -INFINITY;
        int unseen = LIMITED ? (first_keys[first] / GROUP_ROWS - first_tile) / at::TILES : 0;
        float o[D / TILE_VALUES][GROUP_SUMS] = {};
        struct softmax_rows rows = {{lowest, lowest}, {0, 0}};
        unsigned char *own = queries + group * head_tile<D>::BYTES;
        int64_t out_stride = (int64_t)f.heads * D, row = (int64_t)batch * f.sequence + first;
        phase_wait(queries_full, 0);
        if (LIMITED) skip_steps(ring, source, 0, unseen);
        consume<T, D, LIMITED>(o, &rows, ring, source, queries, f, first, unseen, seen);
        finish<T, D>(out + row * out_stride + head * D, out_stride,
                     f.lse + (int64_t)work.head * f.sequence + first, f.sequence - first, (T *)own,
                     o, &rows, f.track_amax);
    }
    skip_steps(ring, source, seen, source.steps);
}

bool attention_wgmma_compiled(void) {
    cudaFuncAttributes attributes;
    const void *kernel = (const void *)attention_forward_kernel<__nv_bfloat16, 64, false>;
    if (cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess) return true;
    cudaGetLastError();
    return false;
}

template <typename T, int D, bool LIMITED>
static void launch_with(struct backend *be, const struct attention_forward_args *args,
                        const struct attention_shape *shape) {
    const char *what = "attention_forward";
    const void *kernel = (const void *)attention_forward_kernel<T, D, LIMITED>;
    struct forward f;
    CUtensorMap map;
    f.lse = args->lse;
    f.track_amax = args->track_amax;
    f.first_keys = args->first_keys;
    f.sequence = (int)shape->sequence;
    f.heads = (int)shape->heads;
    f.kv_heads = (int)shape->kv_heads;
    f.batch = (int)shape->batch;
    f.tiles = (int)blocks_of(shape->sequence, QUERIES);
    f.group = attention_group(shape, args->qkv->dtype, shape->batch * shape->heads);
    f.factor = (float)(LOG2_OF_E / attention_score(args->scale, 0).divisor);
    unsigned blocks = (unsigned)(f.batch * f.heads * f.tiles);
    if (!attention_wgmma_map(&map, be, args->qkv, f.heads + 2 * f.kv_heads, shape)) return;
    if (!cuda_shared(be, kernel, layout<D>::BYTES, what)) return;
    LAUNCH((attention_forward_kernel<T, D, LIMITED>), blocks, THREADS, layout<D>::BYTES,
           cuda_state(be)->compute, (T *)args->out->data, map, f);
    cuda_launched(be, what);
}

template <typename T, int D>
static void launch(struct backend *be, const struct attention_forward_args *args,
                   const struct attention_shape *shape) {
    if (args->first_keys) launch_with<T, D, true>(be, args, shape);
    else launch_with<T, D, false>(be, args, shape);
}

void attention_wgmma_forward(struct backend *be, const struct attention_forward_args *args,
                             const struct attention_shape *shape) {
    assert(args->out->dtype == args->qkv->dtype);
    BY_TYPE_AND_ANY_WIDTH(launch, args->qkv->dtype, shape->width, be, args, shape);
}
