/* Rounds to formats of blocks. A thread has a pack of 8 columns: of one row, or of some rows of a
 * band, whose other rows are other warps'; these are read twice, the second time from the cache.
 * Several lanes share a block that is wider than a pack. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/quantize/find_amax.h"

#include "kernels/block_scale.h"

enum { THREADS = 256, WARPS = THREADS / WARP };

/* Shapes of blocks: 1 x n, n x 1, n x n. */
enum shape { ALONG_ROWS, DOWN_COLUMNS, SQUARES };

/* Parameters of the rounding. */
struct rounding {
    struct quantize_format format;
    uint8_t *block_scales; /* scales of the blocks, with codes */
    int64_t scales_across; /* number of them in a row */
    struct amax *found;    /* the amax of the tensor: read with scales in E4M3, else updated */
    float *scale;          /* scale of the tensor, or NULL */
    const struct step_inputs *inputs;
    struct rounding_key key;
};

/* Returns the tensor's scale, which the first thread stores. */
static __device__ __forceinline__ float read_tensor_scale(const struct rounding &r) {
    if (!r.scale) return 1;
    float scale = tensor_scale(__uint_as_float(r.found->largest));
    if (blockIdx.x == 0 && threadIdx.x == 0) *r.scale = scale;
    return scale;
}

/* bits: of the block's largest magnitude. */
template <enum dtype ELEMENT>
static __device__ __forceinline__ struct block_factors
factors_of(uint32_t bits, float tensor_scale, const struct rounding &r, struct magnitudes *seen) {
    bool finite = bits < NOT_FINITE;
    if (finite) seen->finite = max(seen->finite, bits);
    else seen->any = NOT_FINITE;
    struct block_factors factors = block_factors(finite ? __uint_as_float(bits) : 0, tensor_scale,
                                                 ELEMENT, r.format.scale, r.format.rounding);
    if (!finite) factors.up = NAN;
    return factors;
}

static __device__ __forceinline__ struct rounding_key row_key_of(const struct rounding &r,
                                                                 int64_t row) {
    struct rounding_key none = {0, 0};
    return r.format.stochastic ? rounding_row_key(r.key, r.inputs->first_row + row) : none;
}

template <enum dtype ELEMENT>
static __device__ __forceinline__ float round_value(float value, struct block_factors f,
                                                    bool stochastic, struct rounding_key row_key,
                                                    int64_t column) {
    float scaled = __fmul_rn(value, f.down);
    float element = stochastic ? element_round_stochastic(scaled, ELEMENT,
                                                          rounding_bits(row_key, (uint32_t)column))
                               : element_round(scaled, ELEMENT);
    return __fmul_rn(element, f.up);
}

/* Stores the codes of a pack of elements, in one access. */
template <enum dtype ELEMENT>
static __device__ __forceinline__ void store_codes(void *out, int64_t at, const float *elements) {
    constexpr int BITS = ELEMENT == DTYPE_E2M1 ? 4 : 8;
    uint64_t bytes = 0;
#pragma unroll
    for (int k = 0; k < PACK; k++)
        bytes |= (uint64_t)element_code(elements[k], ELEMENT) << (BITS * k);
    if (BITS == 4) ((uint32_t *)out)[at / PACK] = (uint32_t)bytes;
    else ((uint64_t *)out)[at / PACK] = bytes;
}

static __device__ __forceinline__ uint32_t magnitude_of(float value) {
    return __float_as_uint(value) & 0x7fffffff;
}

/* Sets the bits of the largest magnitude of each column's block, from those of the columns. */
template <enum shape SHAPE>
static __device__ __forceinline__ void merge_columns(uint32_t bits[PACK], int lanes) {
    if (SHAPE == DOWN_COLUMNS) return;
    uint32_t all = 0;
#pragma unroll
    for (int k = 0; k < PACK; k++) all = max(all, bits[k]);
    for (int offset = 1; offset < lanes; offset *= 2)
        all = max(all, __shfl_xor_sync(0xffffffffu, all, offset));
#pragma unroll
    for (int k = 0; k < PACK; k++) bits[k] = all;
}

/* Sets the bits of the columns to the largest of all warps. Called by all threads. */
static __device__ __forceinline__ void merge_warps(uint32_t bits[PACK]) {
    __shared__ uint32_t of_warp[WARPS][PACK][WARP];
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < PACK; k++) of_warp[warp][k][lane] = bits[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < PACK; k++)
#pragma unroll
        for (int i = 0; i < WARPS; i++) bits[k] = max(bits[k], of_warp[i][k][lane]);
}

/* Sets the factors after rounding to 1, and with `store` stores the scales of the blocks of a pack,
 * one of them if several packs share a block. */
template <int FACTORS>
static __device__ __forceinline__ void take_scales(struct block_factors *f,
                                                   const struct rounding &r, int64_t band,
                                                   int64_t column, bool store) {
    uint8_t *scales = r.block_scales + band * r.scales_across + column / r.format.columns;
#pragma unroll
    for (int k = 0; k < FACTORS; k++) {
        if (store && column % r.format.columns == 0)
            scales[k] = block_scale_code(f[k].up, r.format.scale);
        f[k].up = 1;
    }
}

/* Pack of a thread: rows [first, end) in steps of a number of warps, columns from `column` on. */
struct pack_rows {
    int64_t band, first, end, column;
    int step;
};

/* A pack of one row for each thread; or for each block, 32 packs of a band, of which a warp takes
 * every eighth row. A thread without a pack gets no rows. */
template <enum shape SHAPE>
static __device__ __forceinline__ struct pack_rows pack_of_thread(int64_t rows, int64_t columns,
                                                                  int rows_of_band) {
    int64_t packs = columns / PACK;
    if (SHAPE == ALONG_ROWS) {
        int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / packs;
        return {row, row, min(row + 1, rows), i % packs * PACK, 1};
    }
    int64_t across = (packs + WARP - 1) / WARP, band = blockIdx.x / across;
    int64_t pack = blockIdx.x % across * WARP + threadIdx.x % WARP;
    int64_t first = band * rows_of_band, end = min(first + rows_of_band, rows);
    return {band, first + threadIdx.x / WARP, pack < packs ? end : first, pack * PACK, WARPS};
}

/* `lanes` packs share a block. CODES: out has codes. */
template <typename T, enum dtype ELEMENT, enum shape SHAPE, bool CODES>
static __global__ void __launch_bounds__(THREADS)
    packs_kernel(void *out, const T *in, int64_t rows, int64_t columns, int lanes,
                 struct rounding r) {
    struct pack_rows p = pack_of_thread<SHAPE>(rows, columns, r.format.rows);
    float scale = read_tensor_scale(r);
    struct magnitudes seen = {0, 0};
    uint32_t bits[PACK] = {};
    float values[PACK] = {};
#pragma unroll 2
    for (int64_t row = p.first; row < p.end; row += p.step) {
        load_pack(values, in + row * columns + p.column);
#pragma unroll
        for (int k = 0; k < PACK; k++) bits[k] = max(bits[k], magnitude_of(values[k]));
    }
    if (SHAPE != ALONG_ROWS) merge_warps(bits);
    merge_columns<SHAPE>(bits, lanes);
    constexpr int FACTORS = SHAPE == DOWN_COLUMNS ? PACK : 1;
    struct block_factors f[FACTORS];
#pragma unroll
    for (int k = 0; k < FACTORS; k++) f[k] = factors_of<ELEMENT>(bits[k], scale, r, &seen);
    bool first_of_band = SHAPE == ALONG_ROWS || threadIdx.x < WARP;
    if (CODES) take_scales<FACTORS>(f, r, p.band, p.column, first_of_band && p.first < p.end);
#pragma unroll 2
    for (int64_t row = p.first; row < p.end; row += p.step) {
        struct rounding_key row_key = row_key_of(r, row);
        if (SHAPE != ALONG_ROWS) load_pack(values, in + row * columns + p.column);
#pragma unroll
        for (int k = 0; k < PACK; k++)
            values[k] = round_value<ELEMENT>(values[k], f[k % FACTORS], r.format.stochastic,
                                             row_key, p.column + k);
        if (CODES) store_codes<ELEMENT>(out, row * columns + p.column, values);
        else store_pack((__nv_bfloat16 *)out + row * columns + p.column, values);
    }
    if (!r.scale) merge_amax(r.found, seen);
}

/* Stores one code. Another thread may write the other half of its byte. */
template <enum dtype ELEMENT>
static __device__ __forceinline__ void store_code(void *out, int64_t at, float element) {
    uint32_t code = element_code(element, ELEMENT);
    if (ELEMENT == DTYPE_E2M1) atomicOr((unsigned *)out + at / 8, code << (at % 8 * 4));
    else ((uint8_t *)out)[at] = (uint8_t)code;
}

/* A block a thread, for sizes and addresses that no pack divides. Codes of 4 bits are 0 before. */
template <typename T, enum dtype ELEMENT, bool CODES>
static __global__ void __launch_bounds__(THREADS)
    each_block_kernel(void *out, const T *in, int64_t rows, int64_t columns, int64_t count,
                      struct rounding r) {
    const struct quantize_format &format = r.format;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t across = (columns + format.columns - 1) / format.columns;
    int64_t first = i / across * format.rows, column = i % across * format.columns;
    int64_t last = i < count ? min(first + format.rows, rows) : first;
    int64_t end = min(column + format.columns, columns);
    float scale = read_tensor_scale(r);
    struct magnitudes seen = {0, 0};
    uint32_t bits = 0;
    for (int64_t row = first; row < last; row++)
        for (int64_t c = column; c < end; c++)
            bits = max(bits, magnitude_of(widen(in[row * columns + c])));
    struct block_factors f = factors_of<ELEMENT>(bits, scale, r, &seen);
    if (CODES && i < count) {
        r.block_scales[i] = block_scale_code(f.up, format.scale);
        f.up = 1;
    }
    for (int64_t row = first; row < last; row++) {
        struct rounding_key row_key = row_key_of(r, row);
        for (int64_t c = column; c < end; c++) {
            int64_t at = row * columns + c;
            float value = round_value<ELEMENT>(widen(in[at]), f, format.stochastic, row_key, c);
            if (CODES) store_code<ELEMENT>(out, at, value);
            else ((__nv_bfloat16 *)out)[at] = narrow<__nv_bfloat16>(value);
        }
    }
    if (!r.scale) merge_amax(r.found, seen);
}

template <typename T, enum dtype ELEMENT, bool CODES>
static void launch(struct backend *be, const struct fake_quantize_args *args,
                   const struct rounding &r) {
    cudaStream_t stream = cuda_state(be)->compute;
    const struct quantize_format *format = &args->format;
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    int64_t bands = blocks_of(rows, format->rows), packs = columns / PACK;
    int lanes = (int)(format->columns / PACK);
    void *out = args->out->data;
    const T *in = (const T *)args->in->data;
    bool packed = columns % PACK == 0 && aligned_to(out, 16) && aligned_to(in, 16);
    bool whole = packed && format->columns % PACK == 0 && columns % format->columns == 0;
    bool along = whole && format->rows == 1, down = packed && format->columns == 1;
    if (whole || down) {
        LAUNCH(
            (along  ? packs_kernel<T, ELEMENT, ALONG_ROWS, CODES>
             : down ? packs_kernel<T, ELEMENT, DOWN_COLUMNS, CODES>
                    : packs_kernel<T, ELEMENT, SQUARES, CODES>),
            (unsigned)(along ? blocks_of(rows * packs, THREADS) : bands * blocks_of(packs, WARP)),
            THREADS, 0, stream, out, in, rows, columns, lanes, r);
        return;
    }
    int64_t count = bands * blocks_of(columns, format->columns);
    if (CODES)
        cuda_failed(be, cudaMemsetAsync(out, 0, tensor_bytes(args->out), stream), "fake_quantize");
    LAUNCH((each_block_kernel<T, ELEMENT, CODES>), (unsigned)blocks_of(count, THREADS), THREADS, 0,
           stream, out, in, rows, columns, count, r);
}

template <typename T, enum dtype ELEMENT>
static void launch_as(struct backend *be, const struct fake_quantize_args *args,
                      const struct rounding &r) {
    if (args->block_scales) launch<T, ELEMENT, true>(be, args, r);
    else launch<T, ELEMENT, false>(be, args, r);
}

size_t cuda_fake_quantize_scratch(struct backend *be, const struct fake_quantize_args *args) {
    (void)be;
    return args->track_amax ? 0 : sizeof(struct amax);
}

/* Sets r.found to the tensor's amax, or clears what the kernels update. */
static void prepare(struct backend *be, struct rounding *r, const struct fake_quantize_args *args) {
    cudaStream_t stream = cuda_state(be)->compute;
    r->found = args->track_amax ? args->track_amax
                                : (struct amax *)backend_workspace(be, sizeof(struct amax));
    if (!args->track_amax)
        cuda_failed(be, cudaMemsetAsync(r->found, 0, sizeof *r->found, stream), "fake_quantize");
    if (!args->scales || args->found) return;
    STORAGE_SWITCH(
        args->in->dtype, T,
        (find_amax<T>(r->found, (const T *)args->in->data, tensor_count(args->in), NULL, stream)));
}

void cuda_fake_quantize(struct backend *be, const struct fake_quantize_args *args) {
    struct rounding r = {args->format, NULL, 0, NULL, NULL, args->inputs, args->key};
    fake_quantize_check(args);
    if (tensor_count(args->in) == 0) return;
    if (args->scales) r.scale = (float *)args->scales->data;
    if (args->block_scales) {
        r.block_scales = (uint8_t *)args->block_scales->data;
        r.scales_across = tensor_columns(args->block_scales);
    }
    prepare(be, &r, args);
#define LAUNCH_ELEMENT(NAME) \
    if (args->format.element == DTYPE_##NAME) launch_as<T, DTYPE_##NAME>(be, args, r);
    STORAGE_SWITCH(args->in->dtype, T,
                   {LAUNCH_ELEMENT(E4M3) LAUNCH_ELEMENT(E5M2) LAUNCH_ELEMENT(E2M1)});
#undef LAUNCH_ELEMENT
    if (args->record)
        LAUNCH(note_kernel, 1, 1, 0, cuda_state(be)->compute, args->record, r.found, NULL);
    cuda_launched(be, "fake_quantize");
}
