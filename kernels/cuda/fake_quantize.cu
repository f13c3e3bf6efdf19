/* Rounds to microscaling formats. A thread has a pack of 8 columns: of one row, whose blocks
 * several lanes share, or of the rows of 8 blocks, which are read twice, from the cache the second
 * time. */
#include "kernels/cuda/amax.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/flat.h"
#include "kernels/microscaling.h"

enum { THREADS = 256 };

/* Factors before and after rounding. */
struct factors {
    float down, up;
};

/* bits: of the block's largest magnitude. */
template <enum dtype ELEMENT>
static __device__ __forceinline__ struct factors
block_factors(uint32_t bits, enum scale_rounding rounding, struct magnitudes *seen) {
    bool finite = bits < NOT_FINITE;
    int exponent = mx_exponent(__uint_as_float(bits), ELEMENT, rounding);
    if (bits == 0 || !finite) exponent = 0;
    if (finite) seen->finite = max(seen->finite, bits);
    else seen->any = NOT_FINITE;
    struct factors factors = {mx_power(-exponent), finite ? mx_power(exponent) : NAN};
    return factors;
}

template <enum dtype ELEMENT>
static __device__ __forceinline__ float round_value(float value, struct factors f) {
    return __fmul_rn(mx_round(__fmul_rn(value, f.down), ELEMENT), f.up);
}

static __device__ __forceinline__ uint32_t magnitude_of(float value) {
    return __float_as_uint(value) & 0x7fffffff;
}

/* Blocks of 1 x (lanes * PACK). count: packs, a multiple of lanes. */
template <typename T, enum dtype ELEMENT>
static __global__ void __launch_bounds__(THREADS)
    along_rows_kernel(__nv_bfloat16 *__restrict__ out, const T *__restrict__ in, int64_t count,
                      int lanes, enum scale_rounding rounding, struct amax *found) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    struct magnitudes seen = {0, 0};
    float values[PACK] = {};
    if (i < count) load_pack(values, in + i * PACK);
    uint32_t bits = 0;
#pragma unroll
    for (int k = 0; k < PACK; k++) bits = max(bits, magnitude_of(values[k]));
    for (int offset = 1; offset < lanes; offset *= 2)
        bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, offset));
    struct factors f = block_factors<ELEMENT>(bits, rounding, &seen);
#pragma unroll
    for (int k = 0; k < PACK; k++) values[k] = round_value<ELEMENT>(values[k], f);
    if (i < count) store_pack(out + i * PACK, values);
    merge_amax(found, seen);
}

/* Blocks of `band` x 1; the last band may be smaller. count: packs of all bands. */
template <typename T, enum dtype ELEMENT>
static __global__ void __launch_bounds__(THREADS)
    along_columns_kernel(__nv_bfloat16 *__restrict__ out, const T *__restrict__ in, int64_t rows,
                         int64_t columns, int64_t count, int band, enum scale_rounding rounding,
                         struct amax *found) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, packs = columns / PACK;
    int64_t first = i / packs * band, at = first * columns + i % packs * PACK;
    int here = i < count ? (int)min((int64_t)band, rows - first) : 0;
    struct magnitudes seen = {0, 0};
    uint32_t bits[PACK] = {};
    float values[PACK];
    for (int row = 0; row < here; row++) {
        load_pack(values, in + at + row * columns);
#pragma unroll
        for (int k = 0; k < PACK; k++) bits[k] = max(bits[k], magnitude_of(values[k]));
    }
    struct factors f[PACK];
#pragma unroll
    for (int k = 0; k < PACK; k++) f[k] = block_factors<ELEMENT>(bits[k], rounding, &seen);
    for (int row = 0; row < here; row++) {
        load_pack(values, in + at + row * columns);
#pragma unroll
        for (int k = 0; k < PACK; k++) values[k] = round_value<ELEMENT>(values[k], f[k]);
        store_pack(out + at + row * columns, values);
    }
    merge_amax(found, seen);
}

/* A block a thread, for sizes and addresses that no pack divides. */
template <typename T, enum dtype ELEMENT>
static __global__ void __launch_bounds__(THREADS)
    each_block_kernel(__nv_bfloat16 *__restrict__ out, const T *__restrict__ in, int64_t rows,
                      int64_t columns, int64_t count, struct quantize_format format,
                      struct amax *found) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t across = (columns + format.columns - 1) / format.columns;
    int64_t row = i / across * format.rows, column = i % across * format.columns;
    int64_t down = i < count ? min(format.rows, rows - row) : 0;
    int64_t right = min(format.columns, columns - column), at = row * columns + column;
    struct magnitudes seen = {0, 0};
    uint32_t bits = 0;
    for (int64_t r = 0; r < down; r++)
        for (int64_t c = 0; c < right; c++)
            bits = max(bits, magnitude_of(widen(in[at + r * columns + c])));
    struct factors f = block_factors<ELEMENT>(bits, format.rounding, &seen);
    for (int64_t r = 0; r < down; r++)
        for (int64_t c = 0; c < right; c++) {
            int64_t place = at + r * columns + c;
            out[place] = narrow<__nv_bfloat16>(round_value<ELEMENT>(widen(in[place]), f));
        }
    merge_amax(found, seen);
}

static __global__ void record_kernel(struct quantize_record *record, const struct amax *found) {
    record->amax = fmaxf(record->amax, __uint_as_float(found->largest));
    if (found->not_finite) record->not_finite++;
    else if (found->largest == 0) record->zero++;
}

template <typename T, enum dtype ELEMENT>
static void launch(struct backend *be, const struct fake_quantize_args *args, struct amax *found) {
    cudaStream_t stream = cuda_state(be)->compute;
    const struct quantize_format *format = &args->format;
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    int64_t bands = blocks_of(rows, format->rows), packs = columns / PACK;
    __nv_bfloat16 *out = (__nv_bfloat16 *)args->out->data;
    const T *in = (const T *)args->in->data;
    bool packed = columns % PACK == 0 && aligned_to(out, 16) && aligned_to(in, 16);
    if (packed && format->rows == 1 && format->columns % PACK == 0 &&
        columns % format->columns == 0)
        LAUNCH((along_rows_kernel<T, ELEMENT>), (unsigned)blocks_of(rows * packs, THREADS), THREADS,
               0, stream, out, in, rows * packs, (int)(format->columns / PACK), format->rounding,
               found);
    else if (packed && format->columns == 1)
        LAUNCH((along_columns_kernel<T, ELEMENT>), (unsigned)blocks_of(bands * packs, THREADS),
               THREADS, 0, stream, out, in, rows, columns, bands * packs, (int)format->rows,
               format->rounding, found);
    else {
        int64_t count = bands * blocks_of(columns, format->columns);
        LAUNCH((each_block_kernel<T, ELEMENT>), (unsigned)blocks_of(count, THREADS), THREADS, 0,
               stream, out, in, rows, columns, count, *format, found);
    }
}

size_t cuda_fake_quantize_scratch(struct backend *be, const struct fake_quantize_args *args) {
    (void)be, (void)args;
    return sizeof(struct amax);
}

void cuda_fake_quantize(struct backend *be, const struct fake_quantize_args *args) {
    cudaStream_t stream = cuda_state(be)->compute;
    struct amax *found = (struct amax *)backend_workspace(be, sizeof *found);
    assert(tensor_count(args->out) == tensor_count(args->in) && args->out->dtype == DTYPE_BF16);
    if (tensor_count(args->in) == 0) return;
    cuda_failed(be, cudaMemsetAsync(found, 0, sizeof *found, stream), "fake_quantize");
#define LAUNCH_ELEMENT(NAME) \
    if (args->format.element == DTYPE_##NAME) launch<T, DTYPE_##NAME>(be, args, found);
    STORAGE_SWITCH(args->in->dtype, T,
                   {LAUNCH_ELEMENT(E4M3) LAUNCH_ELEMENT(E5M2) LAUNCH_ELEMENT(E2M1)});
#undef LAUNCH_ELEMENT
    if (args->record) LAUNCH(record_kernel, 1, 1, 0, stream, args->record, found);
    cuda_launched(be, "fake_quantize");
}
