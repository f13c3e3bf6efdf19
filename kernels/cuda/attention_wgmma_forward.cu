/* Attention on Hopper's tensor cores, forward: FlashAttention-3 (Shah and others 2024,
 * arXiv:2407.08608) in its causal form, with wgmma and tensor copies; for sm_90a only.
 *
 * Each group of warps has 64 queries, whose scores and outputs are accumulators of wgmma; the
 * softmax is that of attention_mma_forward.cu. The scores of the next tile are multiplied before
 * the outputs of this one, and the exponentials overlap with the latter. The exponentials of one
 * group also overlap with the products of another. Four groups share the tiles at D = 64, so that
 * they are fetched for 256 queries at once; at D = 128 there are registers for two. */
#include "kernels/cuda/attention_wgmma.h"

enum { SLACK = 8 };

template <int D> struct layout {
    enum {
        GROUPS = 256 / D,
        QUERIES = GROUPS * GROUP_ROWS,
        THREADS = GROUPS * GROUP_THREADS,
        RING_AT = GROUPS * head_tile<D>::BYTES, /* after the queries */
        BARRIERS_AT = RING_AT + RING * head_tile<D>::SLOT,
        BYTES = BARRIERS_AT + (2 * RING + 1) * 8
    };
};

struct forward {
    float *lse;
    const int32_t *first_keys; /* [B, sequence], or NULL */
    int sequence, heads, kv_heads, batch, tiles, group;
    float factor; /* scale * log2(e) */
};

/* Online softmax of the thread's two rows, 8 apart. */
struct softmax_rows {
    float shift[2]; /* used instead of the maximum; of factor q k' */
    float sum[2];   /* sum of exp2(factor q k' - shift) over this lane's columns */
};

/* Raises the shifts to the maxima of s (see attention_mma_forward.cu). Returns true if sums and
 * outputs have to be scaled down, by `shrink`. */
static __device__ __forceinline__ bool follow_maxima(struct softmax_rows *rows, float shrink[2],
                                                     const float s[GROUP_SUMS], float factor) {
    bool any = false;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float max = -INFINITY, shift = rows->shift[half];
#pragma unroll
        for (int i = 0; i < GROUP_SUMS / 4; i++)
            max = fmaxf(max, fmaxf(s[i * 4 + half * 2], s[i * 4 + half * 2 + 1]));
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
static __device__ __forceinline__ void exponentials(float s[GROUP_SUMS], struct softmax_rows *rows,
                                                    float factor) {
#pragma unroll
    for (int i = 0; i < GROUP_SUMS; i++) {
        int half = i / 2 % 2;
        s[i] = exp2_approx(fmaf(s[i], factor, -rows->shift[half]));
        rows->sum[half] += s[i];
    }
}

/* Masks the keys that the warp's queries, from `first` on, do not see in step `step`. */
template <bool LIMITED>
static __device__ __forceinline__ void mask_step(float s[GROUP_SUMS], const struct forward &f,
                                                 const struct key_source &source, int first,
                                                 int step, bool diagonal) {
    int key = (source.first + step) * GROUP_ROWS;
    if (diagonal) mask<false>(s, first - key);
    if (LIMITED)
        mask_before<false>(s, f.first_keys + (int64_t)source.batch * f.sequence, f.sequence - 1,
                           first, key);
}

/* Processes the keys that a group sees, tile by tile; o and rows are complete afterwards. The
 * group's queries, from `first` on, see the steps from `begin` to `seen`, at least one. */
template <typename T, int D, bool LIMITED>
static __device__ __forceinline__ void
consume(float o[D / TILE_VALUES][GROUP_SUMS], struct softmax_rows *rows, const struct ring &ring,
        const struct key_source &source, const unsigned char *queries, const struct forward &f,
        int first, int begin, int seen) {
    const int values_at = head_tile<D>::BYTES;
    float s[GROUP_SUMS], shrink[2];
    uint32_t p[GROUP_ROWS / 16][4];
    float factor = f.factor;
    int warp_first = first + (int)threadIdx.x % GROUP_THREADS / WARP * 16;
    fetch_keys<D>(ring, source, begin + AHEAD);
    wait_for_slot(ring, begin);
    group_fence();
    start_scores<T, D>(s, queries, slot_of<D>(ring, begin));
    group_wait<0>();
    mask_step<LIMITED>(s, f, source, warp_first, begin, seen == begin + 1);
    follow_maxima(rows, shrink, s, factor);
    exponentials(s, rows, factor);
    round_to<T>(p, s);
    if (seen > begin + 1) wait_for_slot(ring, begin + 1);
    for (int step = begin + 1; step < seen; step++) {
        fetch_keys<D>(ring, source, step + AHEAD);
        group_fence();
        start_scores<T, D>(s, queries, slot_of<D>(ring, step));
        start_sums<T, D>(o, p, slot_of<D>(ring, step - 1) + values_at);
        group_wait<1>();
        mask_step<LIMITED>(s, f, source, warp_first, step, step == seen - 1);
        bool shrinks = follow_maxima(rows, shrink, s, factor);
        exponentials(s, rows, factor);
        /* This loop also keeps the compiler from waiting for the outputs earlier. */
        if (step + 1 < seen) wait_for_slot(ring, step + 1);
        group_wait<0>();
        empty_slot(ring, step - 1);
        round_to<T>(p, s);
#pragma unroll
        for (int i = 0; shrinks && i < D / TILE_VALUES * GROUP_SUMS; i++)
            o[i / GROUP_SUMS][i % GROUP_SUMS] *= shrink[i / 2 % 2];
    }
    group_fence();
    start_sums<T, D>(o, p, slot_of<D>(ring, seen - 1) + values_at);
    group_wait<0>();
    empty_slot(ring, seen - 1);
}

/* Divides by the sums and stores, with the log-sum-exp; `valid` of the group's rows exist. */
template <typename T, int D>
static __device__ __forceinline__ void finish(T *out, int64_t out_stride, float *lse, int valid,
                                              T *staged, const float o[D / TILE_VALUES][GROUP_SUMS],
                                              const struct softmax_rows *rows) {
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
    store_rows<T, D, false>(out, out_stride, valid, staged, o, inverse, NULL);
}

template <typename T, int D, bool LIMITED>
static __global__ void __launch_bounds__(layout<D>::THREADS, 1)
    attention_forward_kernel(T *__restrict__ out, const __grid_constant__ CUtensorMap map,
                             const struct forward f) {
    typedef struct layout<D> places;
    DYNAMIC_TILES(queries);
    phase_barrier *barriers = (phase_barrier *)(queries + places::BARRIERS_AT);
    struct ring ring = {queries + places::RING_AT, barriers, barriers + RING};
    phase_barrier *queries_full = barriers + 2 * RING;
    struct attention_work work =
        attention_work((int)blockIdx.x, f.tiles, f.batch * f.heads, f.group);
    int begin =
        (f.tiles - 1 - work.tile) * places::QUERIES; /* the last queries have the most keys */
    int end = begin + places::QUERIES < f.sequence ? begin + places::QUERIES : f.sequence;
    int batch = work.head / f.heads, head = work.head % f.heads;
    int group = group_of_warps(), first = begin + group * GROUP_ROWS;
    const int32_t *first_keys = f.first_keys + (int64_t)batch * f.sequence;
    struct key_source source = key_source(&map, f.heads, f.kv_heads, batch, head,
                                          LIMITED ? first_keys[begin] / GROUP_ROWS : 0,
                                          (end + GROUP_ROWS - 1) / GROUP_ROWS);
    if (threadIdx.x == 0) {
        ring_init(ring, places::THREADS / WARP);
        phase_init(queries_full, 1);
        phase_init_done();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        phase_arrive_expecting(queries_full, places::GROUPS * head_tile<D>::BYTES);
        for (int i = 0; i < places::GROUPS; i++)
            fetch_rows<D>(queries + i * head_tile<D>::BYTES, &map, head, begin + i * GROUP_ROWS,
                          batch, queries_full);
    }
    __syncwarp();
    for (int step = 0; step < AHEAD; step++) fetch_keys<D>(ring, source, step);
    int seen = first < f.sequence ? first / GROUP_ROWS + 1 - source.first : 0;
    if (seen > 0) {
        /* A row may see no key of the first tiles: a finite shift then leaves its sum 0. */
        const float lowest = LIMITED ? -1e30f : -INFINITY;
        int unseen = LIMITED ? first_keys[first] / GROUP_ROWS - source.first : 0;
        float o[D / TILE_VALUES][GROUP_SUMS] = {};
        struct softmax_rows rows = {{lowest, lowest}, {0, 0}};
        unsigned char *own = queries + group * head_tile<D>::BYTES;
        int64_t out_stride = (int64_t)f.heads * D, row = (int64_t)batch * f.sequence + first;
        phase_wait(queries_full, 0);
        if (LIMITED) skip_steps<D>(ring, source, 0, unseen);
        consume<T, D, LIMITED>(o, &rows, ring, source, own, f, first, unseen, seen);
        finish<T, D>(out + row * out_stride + head * D, out_stride,
                     f.lse + (int64_t)work.head * f.sequence + first, f.sequence - first, (T *)own,
                     o, &rows);
    }
    skip_steps<D>(ring, source, seen, source.steps);
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
    f.first_keys = args->first_keys;
    f.sequence = (int)shape->sequence;
    f.heads = (int)shape->heads;
    f.kv_heads = (int)shape->kv_heads;
    f.batch = (int)shape->batch;
    f.tiles = (int)blocks_of(shape->sequence, layout<D>::QUERIES);
    f.group = attention_group(shape, shape->batch * shape->heads);
    f.factor = (float)(LOG2_OF_E / sqrt((double)D));
    unsigned blocks = (unsigned)(f.batch * f.heads * f.tiles);
    if (!attention_wgmma_map(&map, be, args->qkv, f.heads + 2 * f.kv_heads, shape)) return;
    if (!cuda_shared(be, kernel, layout<D>::BYTES, what)) return;
    LAUNCH((attention_forward_kernel<T, D, LIMITED>), blocks, layout<D>::THREADS, layout<D>::BYTES,
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
    BY_TYPE_AND_WIDTH(launch, args->qkv->dtype, shape->width, be, args, shape);
}
