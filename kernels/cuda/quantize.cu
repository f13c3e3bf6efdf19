/* Rounding to 8 bits with a scale.
 *
 *     whole    find the largest magnitude; make the scale; round. With an amax of earlier steps it
 *              is found while values are rounded, and they are read once
 *     rows     a block for each row does all, and the second time finds it in the cache
 *     columns  as for the whole, with a largest magnitude and a scale for each column
 *
 * Magnitudes are compared as the bits of fp32, which have the order of the values, so that the
 * largest may be found by atomics in any order. All of it is memory work: 2 bytes are read per
 * element and pass, and 1 is written. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/flat.h"
#include "kernels/float8.h"

enum { THREADS = 256, CHUNKS = 4, COLUMN_ROWS = 64 /* that a block looks through */ };

static const uint32_t NOT_FINITE = 0x7f800000; /* and above, without the sign */

/* What was found of a tensor, in the workspace. */
struct findings {
    uint32_t largest;    /* bits of the largest finite magnitude, with one scale or one by row */
    uint32_t not_finite; /* something was not */
};

/* ---- magnitudes */

struct magnitude {
    uint32_t finite, any; /* the bits of the largest finite one; all bits together */
};

static __device__ __forceinline__ void look(uint32_t *finite, uint32_t *any, float value) {
    uint32_t bits = __float_as_uint(value) & 0x7fffffff;
    *any = max(*any, bits);
    *finite = max(*finite, bits < NOT_FINITE ? bits : 0u);
}

/* Thread 0 gets the block's; all must call. */
static __device__ struct magnitude block_magnitude(struct magnitude own) {
    __shared__ struct magnitude part[THREADS / WARP];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        own.finite = max(own.finite, __shfl_xor_sync(0xffffffffu, own.finite, offset));
        own.any = max(own.any, __shfl_xor_sync(0xffffffffu, own.any, offset));
    }
    if (lane == 0) part[warp] = own;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < THREADS / WARP; i++) {
            own.finite = max(own.finite, part[i].finite);
            own.any = max(own.any, part[i].any);
        }
    __syncthreads();
    return own;
}

static __device__ __forceinline__ void report(struct findings *found, struct magnitude block) {
    if (block.finite) atomicMax(&found->largest, block.finite);
    if (block.any >= NOT_FINITE) atomicOr(&found->not_finite, 1u);
}

static __device__ __forceinline__ bool is_given(const float *amax) {
    return amax && *amax > 0;
}

template <typename T> static constexpr __host__ __device__ int values_of() {
    return chunk_values(sizeof(T));
}

template <bool WHOLE, typename T>
static __device__ __forceinline__ struct magnitude find_share(const T *in, int64_t first,
                                                              int64_t count) {
    constexpr int N = values_of<T>();
    struct magnitude own = {0, 0};
    float values[CHUNKS][N];
    int64_t at = first + (int64_t)threadIdx.x * N;
    for (int c = 0; c < CHUNKS; c++) {
        int64_t i = at + c * THREADS * N;
        load_flat<WHOLE, N>(values[c], in + i, count - i);
    }
    for (int c = 0; c < CHUNKS; c++)
        for (int i = 0; i < N; i++) look(&own.finite, &own.any, values[c][i]);
    return own;
}

/* Nothing is to be done if the scale comes from elsewhere: then round_kernel looks. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    find_kernel(struct findings *found, const T *__restrict__ in, int64_t count, const float *amax,
                bool aligned) {
    constexpr int SHARE = THREADS * CHUNKS * values_of<T>();
    int64_t first = (int64_t)blockIdx.x * SHARE;
    if (is_given(amax)) return;
    struct magnitude own = aligned && first + SHARE <= count ? find_share<true>(in, first, count)
                                                             : find_share<false>(in, first, count);
    own = block_magnitude(own);
    if (threadIdx.x == 0) report(found, own);
}

/* A thread owns some columns that follow each other, in COLUMN_ROWS rows. */
template <typename T, bool PACKED>
static __global__ void __launch_bounds__(THREADS)
    find_columns_kernel(uint32_t *largest, struct findings *found, const T *__restrict__ in,
                        int64_t rows, int64_t columns) {
    constexpr int N = values_of<T>();
    int64_t column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    int64_t first = (int64_t)blockIdx.y * COLUMN_ROWS;
    int64_t last = first + COLUMN_ROWS < rows ? first + COLUMN_ROWS : rows;
    uint32_t finite[N] = {0}, any = 0;
    if (column >= columns) return;
#pragma unroll 4
    for (int64_t row = first; row < last; row++) {
        float values[N];
        load_flat<PACKED, N>(values, in + row * columns + column, columns - column);
        for (int i = 0; i < N; i++) look(&finite[i], &any, values[i]);
    }
    for (int i = 0; i < N; i++)
        if (finite[i] && column + i < columns) atomicMax(&largest[column + i], finite[i]);
    if (any >= NOT_FINITE) atomicOr(&found->not_finite, 1u);
}

/* ---- scales */

/* multipliers are what values are multiplied by; found->largest becomes that of all. */
static __global__ void __launch_bounds__(THREADS)
    scales_kernel(float *multipliers, float *scales, struct findings *found,
                  const uint32_t *largest, int64_t count, const float *amax, bool e4m3,
                  bool power_of_two) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    float own = is_given(amax) ? *amax : __uint_as_float(largest[i]);
    float scale = f8_scale(own, e4m3, power_of_two);
    multipliers[i] = scale;
    scales[i] = 1.0f / scale;
    if (largest != &found->largest) atomicMax(&found->largest, largest[i]);
}

static __global__ void note_kernel(struct quantize_record *record, const struct findings *found) {
    record->amax = fmaxf(record->amax, __uint_as_float(found->largest));
    if (found->not_finite) record->not_finite++;
    else if (found->largest == 0) record->zero++;
}

/* ---- rounding */

template <bool WHOLE, int N>
static __device__ __forceinline__ void store_codes(uint8_t *to, const uint32_t *codes,
                                                   int64_t left) {
    if (WHOLE) {
        struct chunk<uint8_t, N> moved;
        uint8_t at[N];
        for (int i = 0; i < N; i++) at[i] = (uint8_t)codes[i];
        memcpy(&moved.bits, (const void *)at, sizeof at);
        *(struct chunk<uint8_t, N> *)to = moved;
    } else {
        for (int i = 0; i < N; i++)
            if (i < left) to[i] = (uint8_t)codes[i];
    }
}

/* Every element with its own multiplier if BY_COLUMN, where columns are a multiple of a chunk if
 * WHOLE. */
template <bool WHOLE, bool E4M3, bool BY_COLUMN, typename T>
static __device__ __forceinline__ struct magnitude
round_share(uint8_t *out, const T *in, const float *multipliers, int64_t first, int64_t count,
            int64_t columns) {
    constexpr int N = values_of<T>();
    struct magnitude own = {0, 0};
    float values[CHUNKS][N], scale = BY_COLUMN ? 0 : *multipliers;
    int64_t at = first + (int64_t)threadIdx.x * N;
    for (int c = 0; c < CHUNKS; c++) {
        int64_t i = at + c * THREADS * N;
        load_flat<WHOLE, N>(values[c], in + i, count - i);
    }
    for (int c = 0; c < CHUNKS; c++) {
        int64_t place = at + c * THREADS * N, column = BY_COLUMN ? place % columns : 0;
        uint32_t codes[N];
        for (int i = 0; i < N; i++) {
            if (BY_COLUMN) {
                scale = multipliers[column];
                if (++column == columns) column = 0;
            }
            look(&own.finite, &own.any, values[c][i]);
            codes[i] = f8_round(values[c][i], scale, E4M3);
        }
        store_codes<WHOLE, N>(out + place, codes, count - place);
    }
    return own;
}

/* With an amax from elsewhere, what is found of the tensor goes to found. */
template <typename T, bool E4M3, bool BY_COLUMN>
static __global__ void __launch_bounds__(THREADS)
    round_kernel(uint8_t *__restrict__ out, const T *__restrict__ in, const float *multipliers,
                 int64_t count, int64_t columns, struct findings *found, const float *amax,
                 bool aligned) {
    constexpr int SHARE = THREADS * CHUNKS * values_of<T>();
    int64_t first = (int64_t)blockIdx.x * SHARE;
    struct magnitude own =
        aligned && first + SHARE <= count
            ? round_share<true, E4M3, BY_COLUMN>(out, in, multipliers, first, count, columns)
            : round_share<false, E4M3, BY_COLUMN>(out, in, multipliers, first, count, columns);
    if (BY_COLUMN || !is_given(amax)) return;
    own = block_magnitude(own);
    if (threadIdx.x == 0) report(found, own);
}

/* A block does one row. */
template <typename T, bool E4M3, bool PACKED>
static __global__ void __launch_bounds__(THREADS)
    rows_kernel(uint8_t *__restrict__ out, float *scales, const T *__restrict__ in, int64_t columns,
                bool power_of_two, struct findings *found) {
    constexpr int N = values_of<T>();
    __shared__ float multiplier;
    int64_t row = blockIdx.x, step = THREADS * N, start = (int64_t)threadIdx.x * N;
    struct magnitude own = {0, 0};
    float values[N];
    for (int64_t column = start; column < columns; column += step) {
        load_flat<PACKED, N>(values, in + row * columns + column, columns - column);
        for (int i = 0; i < N; i++) look(&own.finite, &own.any, values[i]);
    }
    own = block_magnitude(own);
    if (threadIdx.x == 0) {
        multiplier = f8_scale(__uint_as_float(own.finite), E4M3, power_of_two);
        scales[row] = 1.0f / multiplier;
        report(found, own);
    }
    __syncthreads();
    for (int64_t column = start; column < columns; column += step) {
        uint32_t codes[N];
        load_flat<PACKED, N>(values, in + row * columns + column, columns - column);
        for (int i = 0; i < N; i++) codes[i] = f8_round(values[i], multiplier, E4M3);
        store_codes<PACKED, N>(out + row * columns + column, codes, columns - column);
    }
}

/* ---- launching */

struct scratch {
    struct findings *found;
    uint32_t *largest; /* found->largest, or one for each column */
    float *multipliers;
    void *sums; /* of columns */
    size_t cleared, bytes;
};

static struct scratch scratch_of(const struct backend *be, const struct quantize_args *args,
                                 void *memory) {
    struct arena arena = {(char *)memory, 0, SIZE_MAX};
    struct scratch s = {};
    bool by_column = args->by == QUANTIZE_COLUMNS;
    size_t count = by_column ? (size_t)tensor_columns(args->in) : 1;
    s.found = (struct findings *)arena_take(&arena, sizeof *s.found);
    s.largest = memory && !by_column ? &s.found->largest : NULL;
    if (by_column) s.largest = (uint32_t *)arena_take(&arena, count * sizeof *s.largest);
    s.cleared = arena.used;
    s.multipliers = (float *)arena_take(&arena, count * sizeof *s.multipliers);
    if (args->dbias) s.sums = arena_take(&arena, cuda_column_sums_bytes(be, args->in));
    s.bytes = arena.used;
    return s;
}

size_t cuda_quantize_scratch(struct backend *be, const struct quantize_args *args) {
    return scratch_of(be, args, NULL).bytes;
}

template <typename T> static bool is_packed(const struct quantize_args *args, bool rows) {
    constexpr int N = values_of<T>();
    return aligned_to(args->in->data, N * sizeof(T)) && aligned_to(args->out->data, N) &&
           (!rows || tensor_columns(args->in) % N == 0);
}

template <typename T>
static void find(const struct quantize_args *args, const struct scratch *s, cudaStream_t stream) {
    constexpr int N = values_of<T>();
    int64_t count = tensor_count(args->in), columns = tensor_columns(args->in);
    int64_t rows = tensor_rows(args->in);
    const T *in = (const T *)args->in->data;
    if (args->by == QUANTIZE_WHOLE) {
        LAUNCH(find_kernel<T>, (unsigned)blocks_of(count, THREADS * CHUNKS * N), THREADS, 0, stream,
               s->found, in, count, args->amax, is_packed<T>(args, false));
        return;
    }
    dim3 grid((unsigned)blocks_of(columns, THREADS * N), (unsigned)blocks_of(rows, COLUMN_ROWS));
    assert(grid.y <= 65535);
    if (is_packed<T>(args, true))
        LAUNCH((find_columns_kernel<T, true>), grid, THREADS, 0, stream, s->largest, s->found, in,
               rows, columns);
    else
        LAUNCH((find_columns_kernel<T, false>), grid, THREADS, 0, stream, s->largest, s->found, in,
               rows, columns);
}

template <typename T, bool E4M3>
static void round_all(const struct quantize_args *args, const struct scratch *s,
                      cudaStream_t stream) {
    constexpr int SHARE = THREADS * CHUNKS * values_of<T>();
    int64_t count = tensor_count(args->in), columns = tensor_columns(args->in);
    int64_t rows = tensor_rows(args->in);
    unsigned blocks = (unsigned)blocks_of(count, SHARE);
    uint8_t *out = (uint8_t *)args->out->data;
    const T *in = (const T *)args->in->data;
    if (args->by == QUANTIZE_WHOLE)
        LAUNCH((round_kernel<T, E4M3, false>), blocks, THREADS, 0, stream, out, in, s->multipliers,
               count, columns, s->found, args->amax, is_packed<T>(args, false));
    else if (args->by == QUANTIZE_COLUMNS)
        LAUNCH((round_kernel<T, E4M3, true>), blocks, THREADS, 0, stream, out, in, s->multipliers,
               count, columns, s->found, NULL, is_packed<T>(args, false));
    else if (is_packed<T>(args, true))
        LAUNCH((rows_kernel<T, E4M3, true>), (unsigned)rows, THREADS, 0, stream, out, args->scales,
               in, columns, args->power_of_two, s->found);
    else
        LAUNCH((rows_kernel<T, E4M3, false>), (unsigned)rows, THREADS, 0, stream, out, args->scales,
               in, columns, args->power_of_two, s->found);
}

void cuda_quantize(struct backend *be, const struct quantize_args *args) {
    cudaStream_t stream = cuda_state(be)->compute;
    bool e4m3 = args->out->dtype == DTYPE_E4M3;
    struct scratch s = scratch_of(be, args, backend_workspace(be, cuda_quantize_scratch(be, args)));
    int64_t scales = args->by == QUANTIZE_COLUMNS ? tensor_columns(args->in) : 1;
    assert(dtype_is_8_bit(args->out->dtype) && tensor_count(args->out) == tensor_count(args->in));
    assert(!args->amax || args->by == QUANTIZE_WHOLE);
    if (tensor_count(args->in) == 0) return;
    cuda_failed(be, cudaMemsetAsync(s.found, 0, s.cleared, stream), "quantize");
    if (args->by != QUANTIZE_ROWS) {
        STORAGE_SWITCH(args->in->dtype, T, find<T>(args, &s, stream));
        LAUNCH(scales_kernel, (unsigned)blocks_of(scales, THREADS), THREADS, 0, stream,
               s.multipliers, args->scales, s.found, s.largest, scales, args->amax, e4m3,
               args->power_of_two);
    }
    STORAGE_SWITCH(args->in->dtype, T, {
        if (e4m3) round_all<T, true>(args, &s, stream);
        else round_all<T, false>(args, &s, stream);
    });
    if (args->record) LAUNCH(note_kernel, 1, 1, 0, stream, args->record, s.found);
    cuda_launched(be, "quantize");
    if (args->dbias) cuda_column_sums(be, args->dbias, args->in, s.sums);
}
