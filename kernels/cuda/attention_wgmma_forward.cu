/* Attention on Hopper's tensor cores, forward: FlashAttention-3 (Shah and others 2024,
 * arXiv:2407.08608) in its causal form, with wgmma and tensor copies; for sm_90a alone.
 *
 * A block has 128 queries of one head. One thread fetches: tiles of 64 keys, and of their values,
 * go through a ring of RING slots, each with a barrier that says "full" and one that says "empty".
 * Two groups of four warps have 64 queries each, whose scores and outputs are accumulators of
 * wgmma; the softmax is that of attention_mma_forward.cu. The scores of the next tile are
 * multiplied before the outputs of this one, and the exponentials run beside the latter; what one
 * group exponentiates runs beside what the other multiplies.
 *
 * Queries, keys and values come from one map of qkv as [B, T, H + 2 H_kv, D]: rows beyond the end
 * read as 0. Heads of 128 values take two tiles side by side. */
#include "kernels/cuda/attention_mma.h"
#include "kernels/cuda/ptx_hopper.h"

enum {
    GROUPS = 2,
    QUERIES = GROUPS * GROUP_ROWS,
    KEYS = 64,
    CONSUMERS = GROUPS * GROUP_THREADS,
    THREADS = CONSUMERS + WARP,
    RING = 4,
    TILE_BYTES = 64 * TILE_VALUES * 2,
    SLACK = 8
};

static __device__ __forceinline__ void product(float d[GROUP_SUMS], uint64_t a, uint64_t b, int add,
                                               __half) {
    group_product_f16<0>(d, a, b, add);
}
static __device__ __forceinline__ void product(float d[GROUP_SUMS], uint64_t a, uint64_t b, int add,
                                               __nv_bfloat16) {
    group_product_bf16<0>(d, a, b, add);
}
static __device__ __forceinline__ void product(float d[GROUP_SUMS], const uint32_t a[4], uint64_t b,
                                               __half) {
    group_product_f16<1>(d, a, b, 1);
}
static __device__ __forceinline__ void product(float d[GROUP_SUMS], const uint32_t a[4], uint64_t b,
                                               __nv_bfloat16) {
    group_product_bf16<1>(d, a, b, 1);
}

/* Shared memory, from a multiple of 1024 bytes on. */
template <int D> struct layout {
    enum {
        TILES = D / TILE_VALUES, /* side by side */
        SLOT = TILES * TILE_BYTES,
        RING_AT = GROUPS * SLOT, /* after the queries of each group */
        BARRIERS_AT = RING_AT + RING * SLOT,
        BYTES = BARRIERS_AT + (2 * RING + 1) * 8
    };
};

struct forward {
    float *lse;
    int sequence, heads, kv_heads, batch, tiles, group;
    float factor; /* scale * log2(e) */
};

/* Tiles of the head `head` of qkv, 64 rows from `row` on. */
template <int D>
static __device__ __forceinline__ void fetch(unsigned char *to, const CUtensorMap *map, int head,
                                             int row, int batch, phase_barrier *full) {
#pragma unroll
    for (int i = 0; i < layout<D>::TILES; i++)
        tensor_copy(to + i * TILE_BYTES, map, i * TILE_VALUES, head, row, batch, full);
}

/* The slots, in the order of their use: keys of a tile, its values, keys of the next, ... */
struct ring {
    unsigned char *slots;
    phase_barrier *full, *empty;
};

/* By one thread. */
template <int D>
static __device__ __forceinline__ void produce(const struct forward &f, const struct ring &ring,
                                               unsigned char *queries, phase_barrier *queries_full,
                                               const CUtensorMap *map, int batch, int head,
                                               int begin, int tiles) {
    typedef struct layout<D> places;
    int keys = f.heads + head / (f.heads / f.kv_heads);
    phase_arrive_expecting(queries_full, GROUPS * places::SLOT);
    for (int group = 0; group < GROUPS; group++)
        fetch<D>(queries + group * places::SLOT, map, head, begin + group * GROUP_ROWS, batch,
                 queries_full);
    for (int use = 0; use < 2 * tiles; use++) {
        int slot = use % RING, turn = use / RING % 2;
        phase_wait(ring.empty + slot, turn ^ 1);
        phase_arrive_expecting(ring.full + slot, places::SLOT);
        fetch<D>(ring.slots + slot * places::SLOT, map, keys + use % 2 * f.kv_heads, use / 2 * KEYS,
                 batch, ring.full + slot);
    }
}

template <int D>
static __device__ __forceinline__ unsigned char *full_slot(const struct ring &ring, int use) {
    phase_wait(ring.full + use % RING, use / RING % 2);
    return ring.slots + use % RING * layout<D>::SLOT;
}
static __device__ __forceinline__ void empty_slot(const struct ring &ring, int use) {
    phase_arrive(ring.empty + use % RING);
}

/* Starts s = q k', a group of products. */
template <typename T, int D>
static __device__ __forceinline__ void
start_scores(float s[GROUP_SUMS], const unsigned char *queries, const unsigned char *keys) {
#pragma unroll
    for (int i = 0; i < D / 16; i++) { /* 16 values are 32 bytes of a row */
        int at = i / 4 * TILE_BYTES + i % 4 * 32;
        product(s, tile_descriptor(queries) + (uint64_t)(at / 16),
                tile_descriptor(keys) + (uint64_t)(at / 16), i > 0, T());
    }
    group_commit();
}

/* Starts o += p v, a group of products. */
template <typename T, int D>
static __device__ __forceinline__ void start_outputs(float o[D / TILE_VALUES][GROUP_SUMS],
                                                     const uint32_t p[KEYS / 16][4],
                                                     const unsigned char *values) {
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) /* 16 keys are 16 rows */
#pragma unroll
        for (int tile = 0; tile < D / TILE_VALUES; tile++)
            product(o[tile], p[i],
                    tile_descriptor(values) + (uint64_t)((tile * TILE_BYTES + i * 16 * 128) / 16),
                    T());
    group_commit();
}

/* Of the thread's two rows, 8 apart. */
struct softmax_rows {
    float shift[2]; /* in place of the maximum; of factor q k' */
    float sum[2];   /* of exp2(factor q k' - shift), this lane's columns only */
};

/* Removes what lies above the diagonal; the warp's first row is `ahead` after the first key. */
static __device__ __forceinline__ void mask(float s[GROUP_SUMS], int ahead) {
    int lane = (int)threadIdx.x % WARP, last = ahead + lane / 4 - lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < GROUP_SUMS; i++)
        if (i / 4 * 8 + i % 2 > last + i / 2 % 2 * 8) s[i] = -INFINITY;
}

/* Lets the shifts follow the maxima of s (see attention_mma_forward.cu). Returns whether sums and
 * outputs are to shrink, by `shrink`. */
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

/* s, rounded to 16 bits, as A of the next products. */
template <typename T>
static __device__ __forceinline__ void round_to(uint32_t p[KEYS / 16][4],
                                                const float s[GROUP_SUMS]) {
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) rounded_fragment<T>(p[i], s + i * 8, s + i * 8 + 4);
}

/* Where chunk `chunk` of a row is staged: in the row of the queries, which no other warp reads. */
static __device__ __forceinline__ int staged_at(int row, int chunk) {
    return chunk / 8 * (TILE_BYTES / 2) + tile_offset<TILE_VALUES>(row, chunk % 8);
}

/* Divides by the sums; outputs go through shared memory, where the warp's queries were. `valid` of
 * the group's rows exist. */
template <typename T, int D>
static __device__ __forceinline__ void finish(T *out, int64_t out_stride, float *lse, int valid,
                                              T *staged, const float o[D / TILE_VALUES][GROUP_SUMS],
                                              const struct softmax_rows *rows) {
    int thread = (int)threadIdx.x % GROUP_THREADS, lane = thread % WARP, first = thread / WARP * 16;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first + half * 8 + lane / 4;
        float sum = rows->sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane % 4 == 0 && row < valid) lse[row] = (rows->shift[half] + log2f(sum)) * LN_OF_2;
        float inverse = 1 / sum;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const float *pair = o[n / 8] + n % 8 * 4 + half * 2;
            *(uint32_t *)(staged + staged_at(row, n) + lane % 4 * 2) =
                rounded_pair(pair[0] * inverse, pair[1] * inverse, T());
        }
    }
    __syncwarp();
    const int chunks = D / PACK;
#pragma unroll
    for (int i = 0; i < 16 * chunks; i += WARP) {
        int row = first + (i + lane) / chunks, chunk = (i + lane) % chunks;
        if (row < valid)
            *(uint4 *)(out + row * out_stride + chunk * PACK) =
                *(const uint4 *)(staged + staged_at(row, chunk));
    }
}

/* The keys that a group sees, tile by tile; o and rows are complete afterwards. `all` tiles come
 * by, of which the group's queries, from `first` on, see `seen`. */
template <typename T, int D>
static __device__ __forceinline__ void
consume(float o[D / TILE_VALUES][GROUP_SUMS], struct softmax_rows *rows, const struct ring &ring,
        const unsigned char *queries, int first, int seen, int all, float factor) {
    float s[GROUP_SUMS], shrink[2];
    uint32_t p[KEYS / 16][4];
    int warp_first = first + (int)threadIdx.x % GROUP_THREADS / WARP * 16;
    group_fence();
    start_scores<T, D>(s, queries, full_slot<D>(ring, 0));
    group_wait<0>();
    empty_slot(ring, 0);
    if (seen == 1) mask(s, warp_first);
    follow_maxima(rows, shrink, s, factor);
    exponentials(s, rows, factor);
    round_to<T>(p, s);
    for (int tile = 1; tile < seen; tile++) {
        const unsigned char *keys = full_slot<D>(ring, 2 * tile);
        const unsigned char *values = full_slot<D>(ring, 2 * tile - 1);
        group_fence();
        start_scores<T, D>(s, queries, keys);
        start_outputs<T, D>(o, p, values);
        group_wait<1>();
        empty_slot(ring, 2 * tile);
        if (tile == seen - 1) mask(s, warp_first - tile * KEYS);
        bool shrinks = follow_maxima(rows, shrink, s, factor);
        exponentials(s, rows, factor);
        group_wait<0>();
        empty_slot(ring, 2 * tile - 1);
        round_to<T>(p, s);
#pragma unroll
        for (int i = 0; shrinks && i < D / TILE_VALUES * GROUP_SUMS; i++)
            o[i / GROUP_SUMS][i % GROUP_SUMS] *= shrink[i / 2 % 2];
    }
    const unsigned char *values = full_slot<D>(ring, 2 * seen - 1);
    group_fence();
    start_outputs<T, D>(o, p, values);
    group_wait<0>();
    for (int use = 2 * seen - 1; use < 2 * all; use++) {
        full_slot<D>(ring, use);
        empty_slot(ring, use);
    }
}

template <typename T, int D>
static __global__ void __launch_bounds__(THREADS, 1)
    attention_forward_kernel(T *__restrict__ out, const __grid_constant__ CUtensorMap map,
                             const struct forward f) {
    typedef struct layout<D> places;
    DYNAMIC_SHARED(unsigned char, queries);
    phase_barrier *barriers = (phase_barrier *)(queries + places::BARRIERS_AT);
    struct ring ring = {queries + places::RING_AT, barriers, barriers + RING};
    phase_barrier *queries_full = barriers + 2 * RING;
    int thread = (int)threadIdx.x, group = thread / GROUP_THREADS;
    struct attention_work work = attention_work(f.tiles, f.batch * f.heads, f.group);
    int begin = (f.tiles - 1 - work.tile) * QUERIES; /* the last queries have the most keys */
    int end = begin + QUERIES < f.sequence ? begin + QUERIES : f.sequence;
    int batch = work.head / f.heads, head = work.head % f.heads, all = (end + KEYS - 1) / KEYS;
    if (thread == 0) {
        for (int i = 0; i < RING; i++) {
            phase_init(ring.full + i, 1);
            phase_init(ring.empty + i, CONSUMERS);
        }
        phase_init(queries_full, 1);
        phase_init_done();
    }
    __syncthreads();
    if (group == GROUPS) {
        if (thread % WARP == 0)
            produce<D>(f, ring, queries, queries_full, &map, batch, head, begin, all);
        return;
    }
    int first = begin + group * GROUP_ROWS, seen = first / KEYS + 1;
    float o[D / TILE_VALUES][GROUP_SUMS] = {};
    struct softmax_rows rows = {{-INFINITY, -INFINITY}, {0, 0}};
    unsigned char *own = queries + group * places::SLOT;
    phase_wait(queries_full, 0);
    consume<T, D>(o, &rows, ring, own, first, seen < all ? seen : all, all, f.factor);
    int64_t out_stride = (int64_t)f.heads * D, row = (int64_t)batch * f.sequence + first;
    finish<T, D>(out + row * out_stride + head * D, out_stride,
                 f.lse + (int64_t)work.head * f.sequence + first, f.sequence - first, (T *)own, o,
                 &rows);
}

/* ---- on the host */

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                    const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's function, which is not linked; NULL if it has none. */
static void *find_encode() {
    void *found = NULL;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                          cudaEnableDefault, &result);
#else
    cudaError_t status =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    if (status == cudaSuccess && result == cudaDriverEntryPointSuccess) return found;
    cudaGetLastError();
    return NULL;
}

bool attention_wgmma_supports(struct cuda_state *cuda, enum dtype dtype, int64_t width) {
    if (cuda->major != 9 || cuda->minor != 0 || dtype == DTYPE_F32) return false;
    if (width != 64 && width != 128) return false;
    if (!cuda->looked_for_encode) {
        cudaFuncAttributes attributes;
        bool here = cudaFuncGetAttributes(
                        &attributes, (const void *)attention_forward_kernel<__nv_bfloat16, 64>) ==
                    cudaSuccess;
        if (here) cuda->encode_tensor_map = find_encode();
        else cudaGetLastError(); /* this program has no code for it */
        cuda->looked_for_encode = true;
    }
    return cuda->encode_tensor_map != NULL;
}

/* Boxes of 64 rows and 64 values of a head. */
static bool map_of(CUtensorMap *map, const struct cuda_state *cuda, const struct tensor *qkv,
                   const struct attention_shape *shape) {
    uint64_t heads = (uint64_t)(shape->heads + 2 * shape->kv_heads);
    uint64_t width = (uint64_t)shape->width, length = (uint64_t)shape->sequence;
    cuuint64_t sizes[4] = {width, heads, length, (cuuint64_t)shape->batch};
    cuuint64_t strides[3] = {width * 2, heads * width * 2, length * heads * width * 2};
    cuuint32_t box[4] = {TILE_VALUES, 1, 64, 1}, steps[4] = {1, 1, 1, 1};
    CUtensorMapDataType type = qkv->dtype == DTYPE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    return ((encode_function)cuda->encode_tensor_map)(
               map, type, 4, qkv->data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <typename T, int D>
static void launch(struct backend *be, const struct attention_forward_args *args,
                   const struct attention_shape *shape) {
    const char *what = "attention_forward";
    const void *kernel = (const void *)attention_forward_kernel<T, D>;
    struct forward f;
    CUtensorMap map;
    f.lse = args->lse;
    f.sequence = (int)shape->sequence;
    f.heads = (int)shape->heads;
    f.kv_heads = (int)shape->kv_heads;
    f.batch = (int)shape->batch;
    f.tiles = (int)blocks_of(shape->sequence, QUERIES);
    f.group = attention_group(shape, shape->batch * shape->heads);
    f.factor = (float)(LOG2_OF_E / sqrt((double)D));
    unsigned blocks = (unsigned)(f.batch * f.heads * f.tiles);
    if (!map_of(&map, cuda_state(be), args->qkv, shape)) {
        cuda_failed(be, cudaErrorInvalidValue, "a tensor map of qkv");
        return;
    }
    if (!cuda_shared(be, kernel, layout<D>::BYTES, what)) return;
    LAUNCH((attention_forward_kernel<T, D>), blocks, THREADS, layout<D>::BYTES,
           cuda_state(be)->compute, (T *)args->out->data, map, f);
    cuda_launched(be, what);
}

void attention_wgmma_forward(struct backend *be, const struct attention_forward_args *args,
                             const struct attention_shape *shape) {
    assert(args->out->dtype == args->qkv->dtype);
    bool half = args->qkv->dtype == DTYPE_F16, wide = shape->width == 128;
    if (half && wide) launch<__half, 128>(be, args, shape);
    else if (half) launch<__half, 64>(be, args, shape);
    else if (wide) launch<__nv_bfloat16, 128>(be, args, shape);
    else launch<__nv_bfloat16, 64>(be, args, shape);
}
