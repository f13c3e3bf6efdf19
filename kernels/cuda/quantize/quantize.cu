/* Quantizes to 8 bits with a scale.
 *
 *     whole    finds the amax, unless the kernel that wrote the tensor tracked it; rounds. With an
 *              amax of earlier steps it is tracked while values are rounded, and they are read once
 *     rows     1 x n: a warp per row does all; the end of a long row is read again, from the cache
 *     columns  m x 1: as for the whole, with an amax and a scale for each column of m rows
 *
 * Codes are stored as they are, transposed, or both. The limit is memory bandwidth: 2 bytes are
 * read per element and pass, and 1 is written for each order. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/quantize/find_amax.h"
#include "kernels/cuda/quantize/float8_code.h"
#include "kernels/cuda/reduce.h"
#include "kernels/cuda/tile.h"

enum {
    THREADS = FIND_THREADS,
    CHUNKS = FIND_CHUNKS,
    COLUMN_ROWS = 64, /* rows that a block of find_columns_kernel reads */
    ROW_WARPS = THREADS / WARP,
    HELD = 12, /* chunks of a row that a lane keeps: 3072 values of 16 bit in a warp */
};

/* ---- magnitudes */

/* A thread processes some adjacent columns, in COLUMN_ROWS rows of a band of `band` rows. */
template <typename T, bool PACKED>
static __global__ void __launch_bounds__(THREADS)
    find_columns_kernel(uint32_t *largest, struct amax *found, const T *__restrict__ in,
                        int64_t band, int64_t columns) {
    constexpr int N = values_of<T>();
    int64_t column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    unsigned parts = (unsigned)((band + COLUMN_ROWS - 1) / COLUMN_ROWS), part = blockIdx.y % parts;
    int64_t end = (blockIdx.y / parts + 1) * band, first = end - band + part * COLUMN_ROWS;
    int64_t last = first + COLUMN_ROWS < end ? first + COLUMN_ROWS : end;
    largest += blockIdx.y / parts * columns;
    struct magnitudes seen[N] = {{0, 0}};
    uint32_t any = 0;
    if (column >= columns) return;
#pragma unroll 4
    for (int64_t row = first; row < last; row++) {
        float values[N];
        load_flat<PACKED, N>(values, in + row * columns + column, columns - column);
        for (int i = 0; i < N; i++) track_value(&seen[i], values[i]);
    }
    for (int i = 0; i < N; i++) {
        any = max(any, seen[i].any);
        if (seen[i].finite && column + i < columns) atomicMax(&largest[column + i], seen[i].finite);
    }
    if (any >= NOT_FINITE) atomicOr(&found->not_finite, 1u);
}

/* ---- scales */

/* Multipliers of the values, one per column of a band or one for all, and outputs of the
 * scaling. */
struct scaling {
    const float *multipliers; /* [bands, C]; NULL: one for all, computed from the fields below */
    int64_t band;             /* rows of a band */
    const float *amax;        /* optional */
    struct amax *found;       /* valid if amax is not given */
    bool tracks;              /* if an amax is given: found has to be updated */
    bool power_of_two;
    float *scale;                   /* [1], written */
    struct quantize_record *record; /* optional: updated here unless the amax is tracked here */
};

static __device__ __forceinline__ float scale_of(const struct scaling &s, enum dtype dtype) {
    bool given = is_given(s.amax);
    float amax = given ? *s.amax : __uint_as_float(s.found->largest);
    float scale = f8_scale(amax, dtype, s.power_of_two);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
        *s.scale = 1.0f / scale;
        if (s.record && !(given && s.tracks)) note_amax(s.record, s.found);
    }
    return scale;
}

/* multipliers scale the values of a column; found->largest becomes the maximum over all. */
static __global__ void __launch_bounds__(THREADS)
    columns_kernel(float *multipliers, float *scales, struct amax *found, const uint32_t *largest,
                   int64_t count, enum dtype dtype, bool power_of_two) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    float scale = f8_scale(__uint_as_float(largest[i]), dtype, power_of_two);
    multipliers[i] = scale;
    scales[i] = 1.0f / scale;
    atomicMax(&found->largest, largest[i]);
}

/* ---- rounding */

template <bool WHOLE, int N>
static __device__ __forceinline__ void store_codes(uint8_t *to, const uint8_t codes[N],
                                                   int64_t left) {
    if (WHOLE) {
        struct chunk<uint8_t, N> moved;
        memcpy(&moved.bits, (const void *)codes, N);
        *(struct chunk<uint8_t, N> *)to = moved;
    } else {
        for (int i = 0; i < N; i++)
            if (i < left) to[i] = codes[i];
    }
}

/* One multiplier for all; one, and found has to be updated; one for each column. */
enum { ONE, ONE_TRACKED, BY_COLUMN };

template <bool WHOLE, enum dtype DTYPE, int KIND, typename T>
static __device__ __forceinline__ struct magnitudes
round_share(uint8_t *out, const T *in, float scale, const struct scaling &scaling, int64_t first,
            int64_t count, int64_t columns) {
    constexpr int N = values_of<T>();
    struct magnitudes own = {0, 0};
    float values[CHUNKS][N];
    int64_t at = first + (int64_t)threadIdx.x * N;
    for (int c = 0; c < CHUNKS; c++) {
        int64_t i = at + c * THREADS * N;
        load_flat<WHOLE, N>(values[c], in + i, count - i);
    }
    for (int c = 0; c < CHUNKS; c++) {
        int64_t place = at + c * THREADS * N, row = KIND == BY_COLUMN ? place / columns : 0;
        int64_t column = place - row * columns;
        uint8_t codes[N];
        for (int i = 0; i < N; i++) {
            if (KIND == BY_COLUMN) {
                if (place + i < count)
                    scale = scaling.multipliers[row / scaling.band * columns + column];
                if (++column == columns) column = 0, row++;
            }
            if (KIND == ONE_TRACKED) track_value(&own, values[c][i]);
            codes[i] = (uint8_t)float8_code<DTYPE>(values[c][i], scale);
        }
        store_codes<WHOLE, N>(out + place, codes, count - place);
    }
    return own;
}

/* By column, the compiler would load the multipliers of all values first, into 32 registers. */
template <typename T, enum dtype DTYPE, int KIND>
static __global__ void __launch_bounds__(THREADS, KIND == BY_COLUMN ? 4 : 0)
    round_kernel(uint8_t *__restrict__ out, const T *__restrict__ in, int64_t count,
                 int64_t columns, struct scaling scaling, bool aligned) {
    constexpr int SHARE = THREADS * CHUNKS * values_of<T>();
    int64_t first = (int64_t)blockIdx.x * SHARE;
    float scale = KIND == BY_COLUMN ? 0 : scale_of(scaling, DTYPE);
    struct magnitudes own =
        aligned && first + SHARE <= count
            ? round_share<true, DTYPE, KIND>(out, in, scale, scaling, first, count, columns)
            : round_share<false, DTYPE, KIND>(out, in, scale, scaling, first, count, columns);
    if (KIND == ONE_TRACKED && is_given(scaling.amax)) merge_amax(scaling.found, own);
}

/* Rounds a unit of a tile. */
template <enum dtype DTYPE, int KIND, typename T>
static __device__ __forceinline__ uint4 round_unit(struct magnitudes *own, const T *in,
                                                   const float *scales) {
    constexpr int N = values_of<T>();
    union {
        uint8_t codes[TILE_UNIT];
        uint4 bits;
    } unit;
    for (int c = 0; c < TILE_UNIT / N; c++) {
        float values[N];
        load_flat<true, N>(values, in + c * N, N);
        for (int i = 0; i < N; i++) {
            if (KIND == ONE_TRACKED) track_value(own, values[i]);
            float scale = scales[KIND == BY_COLUMN ? c * N + i : 0];
            unit.codes[c * N + i] = (uint8_t)float8_code<DTYPE>(values[i], scale);
        }
    }
    return unit.bits;
}

/* Rounds by tiles, into transposed, and into out unless that is NULL. */
template <typename T, enum dtype DTYPE, int KIND>
static __global__ void __launch_bounds__(TILE_THREADS)
    round_tile_kernel(uint8_t *__restrict__ out, uint8_t *__restrict__ transposed,
                      const T *__restrict__ in, int64_t rows, int64_t columns,
                      struct scaling scaling) {
    __shared__ struct tile tile;
    struct magnitudes own = {0, 0};
    float scales[KIND == BY_COLUMN ? TILE_UNIT : 1];
    int64_t first = (int64_t)blockIdx.y * TILE_SIDE;
    int64_t column = (int64_t)blockIdx.x * TILE_SIDE + threadIdx.x % TILE_UNITS * TILE_UNIT;
    if (KIND != BY_COLUMN) scales[0] = scale_of(scaling, DTYPE);
    else
        for (int i = 0; i < TILE_UNIT; i++)
            scales[i] = column < columns ? scaling.multipliers[column + i] : 0;
    for (int row = (int)threadIdx.x / TILE_UNITS; row < TILE_SIDE; row += TILE_STEP) {
        int64_t at = (first + row) * columns + column;
        if (first + row >= rows || column >= columns) continue;
        uint4 unit = round_unit<DTYPE, KIND>(&own, in + at, scales);
        if (out) *(uint4 *)(out + at) = unit;
        tile_put(&tile, row, unit);
    }
    __syncthreads();
    tile_store<8>(transposed, &tile, rows, columns);
    if (KIND == ONE_TRACKED && is_given(scaling.amax)) merge_amax(scaling.found, own);
}

/* Rounds tensors of any size and alignment, one element per thread. */
template <typename T, enum dtype DTYPE, int KIND>
static __global__ void __launch_bounds__(THREADS)
    round_each_kernel(uint8_t *out, uint8_t *transposed, const T *__restrict__ in, int64_t rows,
                      int64_t columns, struct scaling scaling) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t row = i / columns, column = i % columns;
    struct magnitudes own = {0, 0};
    float scale = KIND == BY_COLUMN ? scaling.multipliers[column] : scale_of(scaling, DTYPE);
    if (i < rows * columns) {
        float value = widen(in[i]);
        uint8_t code = (uint8_t)float8_code<DTYPE>(value, scale);
        if (KIND == ONE_TRACKED) track_value(&own, value);
        if (out) out[i] = code;
        transposed[column * rows + row] = code;
    }
    if (KIND == ONE_TRACKED && is_given(scaling.amax)) merge_amax(scaling.found, own);
}

/* Loads a chunk of a row that has `left` values from there on; zeros beyond. PACKED: rows consist
 * of whole, aligned chunks. */
template <bool PACKED, int N, typename T>
static __device__ __forceinline__ struct chunk<T, N> row_chunk(const T *from, int left) {
    struct chunk<T, N> moved;
    T at[N];
    for (int i = 0; i < N; i++) at[i] = !PACKED && i < left ? from[i] : narrow<T>(0.0f);
    memcpy(&moved.bits, (const void *)at, sizeof at);
    if (PACKED && left > 0) moved = load_chunk<N>(from);
    return moved;
}

template <int N, typename T>
static __device__ __forceinline__ void track_chunk(struct magnitudes *own,
                                                   const struct chunk<T, N> &chunk) {
    float values[N];
    unpack(values, &chunk);
    for (int i = 0; i < N; i++) track_value(own, values[i]);
}

template <bool PACKED, enum dtype DTYPE, int N, typename T>
static __device__ __forceinline__ void round_chunk(uint8_t *out, const struct chunk<T, N> &chunk,
                                                   float multiplier, int left) {
    float values[N];
    uint8_t codes[N];
    unpack(values, &chunk);
    float8_codes<DTYPE, N>(codes, values, multiplier);
    if (left > 0) store_codes<PACKED, N>(out, codes, left);
}

/* A warp per row. Its first chunks stay in registers. */
template <typename T, enum dtype DTYPE, bool PACKED>
static __global__ void __launch_bounds__(THREADS, 2)
    rows_kernel(uint8_t *__restrict__ out, float *scales, const T *__restrict__ in, int64_t rows,
                int columns, bool power_of_two, struct amax *found) {
    constexpr int N = values_of<T>(), STEP = WARP * N;
    int lane = (int)threadIdx.x % WARP, start = lane * N;
    int64_t row = (int64_t)blockIdx.x * ROW_WARPS + threadIdx.x / WARP;
    int left = row < rows ? columns - start : 0;
    struct magnitudes own = {0, 0};
    struct chunk<T, N> held[HELD];
    in += row * columns + start;
    out += row * columns + start;
#pragma unroll
    for (int c = 0; c < HELD; c++) held[c] = row_chunk<PACKED, N>(in + c * STEP, left - c * STEP);
#pragma unroll
    for (int c = 0; c < HELD; c++) track_chunk<N>(&own, held[c]);
#pragma unroll 4
    for (int at = HELD * STEP; at < left; at += STEP)
        track_chunk<N>(&own, row_chunk<PACKED, N>(in + at, left - at));
    float largest = warp_max(__uint_as_float(own.finite));
    float multiplier = f8_scale(largest, DTYPE, power_of_two);
    if (lane == 0 && row < rows) scales[row] = 1.0f / multiplier;
#pragma unroll
    for (int c = 0; c < HELD; c++)
        round_chunk<PACKED, DTYPE, N>(out + c * STEP, held[c], multiplier, left - c * STEP);
#pragma unroll 4
    for (int at = HELD * STEP; at < left; at += STEP)
        round_chunk<PACKED, DTYPE, N>(out + at, row_chunk<PACKED, N>(in + at, left - at),
                                      multiplier, left - at);
    merge_amax(found, own);
}

/* ---- launching */

void cuda_find_amax(struct backend *be, struct amax *track_amax, const struct tensor *tensor) {
    STORAGE_SWITCH(tensor->dtype, T,
                   find_amax(track_amax, (const T *)tensor->data, tensor_count(tensor), NULL,
                             cuda_state(be)->compute));
    cuda_launched(be, "finding an amax");
}

static bool is_whole(const struct quantize_args *args) {
    return tensor_count(args->scales) == 1;
}

static bool by_columns(const struct quantize_args *args) {
    return !is_whole(args) && tensor_columns(args->scales) == tensor_columns(args->in);
}

static bool by_rows(const struct quantize_args *args) {
    return !is_whole(args) && !by_columns(args);
}

static bool power_of_two(const struct quantize_args *args) {
    return args->scale_rounding == SCALE_POWER_OF_TWO;
}

static int64_t band_of(const struct quantize_args *args) {
    return tensor_rows(args->in) / tensor_rows(args->scales);
}

static float *scales_of(const struct quantize_args *args) {
    return (float *)args->scales->data;
}

struct scratch {
    struct amax *found;
    uint32_t *largest;  /* [bands, C], for scales per column */
    float *multipliers; /* [bands, C], for scales per column */
    void *cleared;
    size_t to_clear, bytes;
};

/* Results that several blocks update start at zero. largest is allocated only for scales per
 * column, and found is the caller's track_amax if that is given. */
static struct scratch scratch_of(const struct quantize_args *args, void *memory) {
    struct arena arena = {(char *)memory, 0, SIZE_MAX};
    struct scratch s = {};
    size_t columns = by_columns(args) ? (size_t)tensor_count(args->scales) : 0;
    s.found = args->track_amax;
    s.cleared = memory;
    if (!args->track_amax) s.found = (struct amax *)arena_take(&arena, sizeof *s.found);
    if (columns) s.largest = (uint32_t *)arena_take(&arena, columns * sizeof *s.largest);
    s.to_clear = arena.used;
    if (columns) s.multipliers = (float *)arena_take(&arena, columns * sizeof *s.multipliers);
    s.bytes = arena.used;
    return s;
}

size_t cuda_quantize_scratch(struct backend *be, const struct quantize_args *args) {
    (void)be;
    return scratch_of(args, NULL).bytes;
}

template <typename T> static bool is_packed(const struct quantize_args *args, bool rows) {
    constexpr int N = values_of<T>();
    return aligned_to(args->in->data, N * sizeof(T)) &&
           (!args->out || aligned_to(args->out->data, N)) &&
           (!rows || tensor_columns(args->in) % N == 0);
}

template <typename T> static bool has_tiles(const struct quantize_args *args) {
    return is_packed<T>(args, true) && tensor_rows(args->in) % TILE_UNIT == 0 &&
           tensor_columns(args->in) % TILE_UNIT == 0 &&
           (!args->out || aligned_to(args->out->data, TILE_UNIT)) &&
           aligned_to(args->transposed->data, TILE_UNIT);
}

template <typename T>
static void find(const struct quantize_args *args, const struct scratch *s, cudaStream_t stream) {
    constexpr int N = values_of<T>();
    int64_t count = tensor_count(args->in), columns = tensor_columns(args->in);
    int64_t band = band_of(args), bands = tensor_rows(args->scales);
    const T *in = (const T *)args->in->data;
    if (is_whole(args)) {
        find_amax(s->found, in, count, args->amax, stream);
        return;
    }
    dim3 grid((unsigned)blocks_of(columns, THREADS * N),
              (unsigned)(bands * blocks_of(band, COLUMN_ROWS)));
    assert(grid.y <= 65535);
    LAUNCH(
        (is_packed<T>(args, true) ? find_columns_kernel<T, true> : find_columns_kernel<T, false>),
        grid, THREADS, 0, stream, s->largest, s->found, in, band, columns);
}

template <typename T, enum dtype DTYPE, int KIND>
static void round_flat(const struct quantize_args *args, const struct scaling &scaling,
                       cudaStream_t stream) {
    constexpr int SHARE = THREADS * CHUNKS * values_of<T>();
    int64_t count = tensor_count(args->in), columns = tensor_columns(args->in);
    int64_t rows = tensor_rows(args->in);
    uint8_t *out = args->out ? (uint8_t *)args->out->data : NULL;
    uint8_t *transposed = args->transposed ? (uint8_t *)args->transposed->data : NULL;
    const T *in = (const T *)args->in->data;
    if (!transposed)
        LAUNCH((round_kernel<T, DTYPE, KIND>), (unsigned)blocks_of(count, SHARE), THREADS, 0,
               stream, out, in, count, columns, scaling, is_packed<T>(args, false));
    else if (has_tiles<T>(args))
        LAUNCH((round_tile_kernel<T, DTYPE, KIND>), tile_grid(rows, columns), TILE_THREADS, 0,
               stream, out, transposed, in, rows, columns, scaling);
    else
        LAUNCH((round_each_kernel<T, DTYPE, KIND>), (unsigned)blocks_of(count, THREADS), THREADS, 0,
               stream, out, transposed, in, rows, columns, scaling);
}

template <typename T, enum dtype DTYPE>
static void round_rows(const struct quantize_args *args, const struct scratch *s,
                       cudaStream_t stream) {
    int64_t rows = tensor_count(args->scales), columns = tensor_count(args->in) / rows;
    bool packed = is_packed<T>(args, true) && columns % values_of<T>() == 0;
    assert(columns <= INT32_MAX - HELD * WARP * values_of<T>());
    LAUNCH((packed ? rows_kernel<T, DTYPE, true> : rows_kernel<T, DTYPE, false>),
           (unsigned)blocks_of(rows, ROW_WARPS), THREADS, 0, stream, (uint8_t *)args->out->data,
           scales_of(args), (const T *)args->in->data, rows, (int)columns, power_of_two(args),
           s->found);
}

template <typename T, enum dtype DTYPE>
static void round_all(const struct quantize_args *args, const struct scratch *s,
                      cudaStream_t stream) {
    bool tracks = args->amax && !args->found;
    const struct scaling scaling = {s->multipliers,  band_of(args), args->amax,
                                    s->found,        tracks,        power_of_two(args),
                                    scales_of(args), args->record};
    if (by_rows(args)) round_rows<T, DTYPE>(args, s, stream);
    else if (by_columns(args)) round_flat<T, DTYPE, BY_COLUMN>(args, scaling, stream);
    else if (scaling.tracks) round_flat<T, DTYPE, ONE_TRACKED>(args, scaling, stream);
    else round_flat<T, DTYPE, ONE>(args, scaling, stream);
}

void cuda_quantize(struct backend *be, const struct quantize_args *args) {
    cudaStream_t stream = cuda_state(be)->compute;
    const enum dtype dtype = quantize_result(args)->dtype;
    bool whole = is_whole(args);
    struct scratch s = scratch_of(args, backend_workspace(be, cuda_quantize_scratch(be, args)));
    int64_t scales = tensor_count(args->scales);
    quantize_check(args);
    assert(!by_rows(args) || tensor_rows(args->scales) == tensor_rows(args->in));
    if (tensor_count(args->in) == 0) return;
    if (s.to_clear) cuda_failed(be, cudaMemsetAsync(s.cleared, 0, s.to_clear, stream), "quantize");
    if (!by_rows(args) && !args->found)
        STORAGE_SWITCH(args->in->dtype, T, find<T>(args, &s, stream));
    if (by_columns(args))
        LAUNCH(columns_kernel, (unsigned)blocks_of(scales, THREADS), THREADS, 0, stream,
               s.multipliers, scales_of(args), s.found, s.largest, scales, dtype,
               power_of_two(args));
#define X(NAME, ...) \
    if (dtype == DTYPE_##NAME) round_all<T, DTYPE_##NAME>(args, &s, stream);
    STORAGE_SWITCH(args->in->dtype, T, DTYPES_QUANTIZED(X));
#undef X
    if (args->record && (!whole || (args->amax && !args->found)))
        LAUNCH(note_kernel, 1, 1, 0, stream, args->record, s.found, whole ? args->amax : NULL);
    cuda_launched(be, "quantize");
}
