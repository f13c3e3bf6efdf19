/* Rounding to 8 bits, all on the device: magnitudes, then scales, then codes.
 *
 * The tensor is read twice, 2 bytes an element, and written once, 1 byte. Magnitudes are compared
 * as the bits of floats that are not negative, whose order is that of integers: atomics on them
 * give the same result in any order. */
#include "kernels/cuda/columns.h"
#include "kernels/float8.h"

enum {
    THREADS = 256,
    CHUNKS = 4,       /* packs that a thread takes */
    COLUMN_ROWS = 64, /* rows of a block, where columns have scales */
    INFINITE = 0x7f800000
};

/* In the workspace: of each scale the largest finite magnitude, then what to multiply by; and
 * whether something was not finite. */
struct found {
    uint32_t *amax; /* [scales] */
    float *factors; /* [scales] */
    uint32_t *bad;  /* [1] */
};

static int64_t scales_of(const struct quantize_args *args) {
    if (args->by == QUANTIZE_WHOLE) return 1;
    return args->by == QUANTIZE_ROWS ? tensor_rows(args->in) : tensor_columns(args->in);
}

static struct found place(const struct quantize_args *args, void *memory, size_t *bytes) {
    struct arena arena = {(char *)memory, 0, SIZE_MAX};
    int64_t scales = scales_of(args);
    struct found found;
    found.amax = (uint32_t *)arena_take(&arena, (size_t)(scales + 1) * sizeof(uint32_t));
    found.factors = (float *)arena_take(&arena, (size_t)scales * sizeof(float));
    found.bad = memory ? found.amax + scales : NULL;
    *bytes = arena.used;
    return found;
}

/* Of values that count: the bits of the largest finite magnitude; all, those of any. */
static __device__ __forceinline__ void look(uint32_t *finite, uint32_t *all, const float *values,
                                            int count) {
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        uint32_t bits = i < count ? f8_bits(values[i]) & 0x7fffffffu : 0;
        *all = bits > *all ? bits : *all;
        if (bits < INFINITE && bits > *finite) *finite = bits;
    }
}

/* To the place of a scale, once for each warp. */
static __device__ __forceinline__ void report(struct found found, int64_t scale, uint32_t finite,
                                              uint32_t all) {
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, finite, offset);
        uint32_t any = __shfl_xor_sync(0xffffffffu, all, offset);
        finite = other > finite ? other : finite;
        all = any > all ? any : all;
    }
    if (threadIdx.x % WARP != 0) return;
    if (finite) atomicMax(found.amax + scale, finite);
    if (all >= INFINITE) atomicMax(found.bad, 1u);
}

/* Elements that share a scale: runs of `length`, of which blockIdx.y says which. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    amax_kernel(struct found found, const T *__restrict__ in, int64_t length, bool packed) {
    const T *run = in + blockIdx.y * length;
    uint32_t finite = 0, all = 0;
    for (int c = 0; c < CHUNKS; c++) {
        int64_t at = (((int64_t)blockIdx.x * CHUNKS + c) * THREADS + threadIdx.x) * PACK;
        int count = columns_from(at, length);
        float values[PACK] = {0};
        if (count <= 0) break;
        if (packed && count == PACK) load_pack(values, run + at);
        else load_some(values, run + at, count);
        look(&finite, &all, values, count);
    }
    report(found, blockIdx.y, finite, all);
}

/* A thread owns a column; a block looks at COLUMN_ROWS rows. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    column_amax_kernel(struct found found, const T *__restrict__ in, int64_t rows,
                       int64_t columns) {
    int64_t column = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t first = (int64_t)blockIdx.y * COLUMN_ROWS;
    int64_t last = first + COLUMN_ROWS < rows ? first + COLUMN_ROWS : rows;
    uint32_t finite = 0, all = 0;
    if (column >= columns) return;
    for (int64_t row = first; row < last; row++) {
        float value = widen(in[row * columns + column]);
        look(&finite, &all, &value, 1);
    }
    if (finite) atomicMax(found.amax + column, finite);
    if (all >= INFINITE) atomicMax(found.bad, 1u);
}

/* One block. The scale of an amax, the rule of struct quantize_args. */
static __global__ void __launch_bounds__(THREADS)
    scales_kernel(struct found found, float *scales, struct quantize_record *record,
                  const float *given, int64_t count, bool e4m3, bool power_of_two) {
    __shared__ uint32_t part[THREADS];
    uint32_t largest = 0;
    for (int64_t i = threadIdx.x; i < count; i += THREADS) {
        uint32_t bits = found.amax[i];
        largest = bits > largest ? bits : largest;
        float amax = given && *given > 0 ? *given : f8_float(bits);
        float factor = amax > 0 ? __fdiv_rn(f8_max(e4m3), amax) : 1.0f;
        if (factor > 0x1p126f) factor = 0x1p126f;
        if (power_of_two) factor = f8_float(f8_bits(factor) & INFINITE);
        found.factors[i] = factor;
        scales[i] = __fdiv_rn(1.0f, factor);
    }
    part[threadIdx.x] = largest;
    __syncthreads();
    if (threadIdx.x > 0 || !record) return;
    for (int i = 1; i < THREADS; i++) largest = part[i] > largest ? part[i] : largest;
    float amax = f8_float(largest);
    if (amax > record->amax) record->amax = amax;
    record->not_finite += (int32_t)*found.bad;
    record->zero += largest == 0 && !*found.bad;
}

/* Which scale an element has. */
template <enum quantize_by BY>
static __device__ __forceinline__ float factor_at(const float *factors, int64_t at,
                                                  int64_t columns) {
    if (BY == QUANTIZE_WHOLE) return factors[0];
    return factors[BY == QUANTIZE_ROWS ? at / columns : at % columns];
}

template <typename T, enum quantize_by BY, bool E4M3>
static __global__ void __launch_bounds__(THREADS)
    codes_kernel(uint8_t *__restrict__ out, const T *__restrict__ in,
                 const float *__restrict__ factors, int64_t count, int64_t columns, bool packed) {
    for (int c = 0; c < CHUNKS; c++) {
        int64_t at = (((int64_t)blockIdx.x * CHUNKS + c) * THREADS + threadIdx.x) * PACK;
        int some = columns_from(at, count);
        float values[PACK];
        union {
            uint2 bits;
            uint8_t at[PACK];
        } codes;
        if (some <= 0) return;
        bool whole = packed && some == PACK;
        if (whole) load_pack(values, in + at);
        else load_some(values, in + at, some);
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            int64_t element = at + (i < some ? i : 0);
            float factor = factor_at<BY>(factors, element, columns);
            codes.at[i] = (uint8_t)f8_round(values[i], factor, E4M3);
        }
        if (whole) *(uint2 *)(out + at) = codes.bits;
        else
            for (int i = 0; i < some; i++) out[at + i] = codes.at[i];
    }
}

template <typename T>
static void find_amax(struct backend *be, const struct quantize_args *args, struct found found) {
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    cudaStream_t stream = cuda_state(be)->compute;
    const T *in = (const T *)args->in->data;
    if (args->by == QUANTIZE_COLUMNS) {
        dim3 grid((unsigned)blocks_of(columns, THREADS), (unsigned)blocks_of(rows, COLUMN_ROWS));
        LAUNCH(column_amax_kernel<T>, grid, THREADS, 0, stream, found, in, rows, columns);
        return;
    }
    /* Rows beyond what a grid may have in y are in further launches. */
    int64_t length = args->by == QUANTIZE_ROWS ? columns : rows * columns;
    int64_t runs = args->by == QUANTIZE_ROWS ? rows : 1;
    enum { GRID_Y = 65535 };
    bool packed = (uintptr_t)in % 16 == 0 && (runs == 1 || length % PACK == 0);
    for (int64_t first = 0; first < runs; first += GRID_Y) {
        int64_t some = runs - first < GRID_Y ? runs - first : (int64_t)GRID_Y;
        dim3 grid((unsigned)blocks_of(length, (int64_t)THREADS * CHUNKS * PACK), (unsigned)some);
        struct found part = found;
        part.amax += first;
        LAUNCH(amax_kernel<T>, grid, THREADS, 0, stream, part, in + first * length, length, packed);
    }
}

template <typename T, enum quantize_by BY>
static void write_codes(struct backend *be, const struct quantize_args *args, struct found found) {
    int64_t count = tensor_count(args->in);
    unsigned blocks = (unsigned)blocks_of(count, (int64_t)THREADS * CHUNKS * PACK);
    uint8_t *out = (uint8_t *)args->out->data;
    const T *in = (const T *)args->in->data;
    bool packed = (uintptr_t)in % 16 == 0 && (uintptr_t)out % 8 == 0;
    if (args->out->dtype == DTYPE_E4M3)
        LAUNCH((codes_kernel<T, BY, true>), blocks, THREADS, 0, cuda_state(be)->compute, out, in,
               found.factors, count, tensor_columns(args->in), packed);
    else
        LAUNCH((codes_kernel<T, BY, false>), blocks, THREADS, 0, cuda_state(be)->compute, out, in,
               found.factors, count, tensor_columns(args->in), packed);
}

template <typename T>
static void quantize(struct backend *be, const struct quantize_args *args, struct found found) {
    find_amax<T>(be, args, found);
    LAUNCH(scales_kernel, 1, THREADS, 0, cuda_state(be)->compute, found, args->scales, args->record,
           args->amax, scales_of(args), args->out->dtype == DTYPE_E4M3, args->power_of_two);
    if (args->by == QUANTIZE_WHOLE) write_codes<T, QUANTIZE_WHOLE>(be, args, found);
    else if (args->by == QUANTIZE_ROWS) write_codes<T, QUANTIZE_ROWS>(be, args, found);
    else write_codes<T, QUANTIZE_COLUMNS>(be, args, found);
}

template <bool E4M3>
static __global__ void __launch_bounds__(THREADS)
    widen_kernel(__nv_bfloat16 *__restrict__ out, const uint8_t *__restrict__ in, int64_t count,
                 bool packed) {
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * PACK;
    int some = columns_from(at, count);
    float values[PACK];
    union {
        uint2 bits;
        uint8_t at[PACK];
    } codes;
    if (some <= 0) return;
    bool whole = packed && some == PACK;
    if (whole) codes.bits = *(const uint2 *)(in + at);
    else
        for (int i = 0; i < PACK; i++) codes.at[i] = i < some ? in[at + i] : 0;
#pragma unroll
    for (int i = 0; i < PACK; i++) values[i] = f8_widen(codes.at[i], E4M3);
    if (whole) store_pack(out + at, values);
    else store_some(out + at, values, some);
}

void cuda_widen_8_bit(struct backend *be, const struct tensor *to, const struct tensor *from) {
    int64_t count = tensor_count(from);
    unsigned blocks = (unsigned)blocks_of(count, (int64_t)THREADS * PACK);
    bool packed = (uintptr_t)to->data % 16 == 0 && (uintptr_t)from->data % 8 == 0;
    __nv_bfloat16 *out = (__nv_bfloat16 *)to->data;
    const uint8_t *in = (const uint8_t *)from->data;
    if (from->dtype == DTYPE_E4M3)
        LAUNCH(widen_kernel<true>, blocks, THREADS, 0, cuda_state(be)->compute, out, in, count,
               packed);
    else
        LAUNCH(widen_kernel<false>, blocks, THREADS, 0, cuda_state(be)->compute, out, in, count,
               packed);
    cuda_launched(be, "matmul");
}

size_t cuda_quantize_scratch(struct backend *be, const struct quantize_args *args) {
    size_t bytes, sums = args->dbias ? cuda_column_sums_bytes(be, args->in) : 0;
    place(args, NULL, &bytes);
    return bytes > sums ? bytes : sums;
}

void cuda_quantize(struct backend *be, const struct quantize_args *args) {
    size_t bytes;
    void *scratch = backend_workspace(be, cuda_quantize_scratch(be, args));
    struct found found = place(args, scratch, &bytes);
    assert(dtype_is_8_bit(args->out->dtype) && tensor_count(args->out) == tensor_count(args->in));
    if (tensor_count(args->in) == 0) return;
    struct clear_args zeros = {found.amax, (size_t)(scales_of(args) + 1) * sizeof(uint32_t)};
    cuda_clear(be, &zeros);
    STORAGE_SWITCH(args->in->dtype, T, quantize<T>(be, args, found));
    if (args->dbias) cuda_column_sums(be, args->dbias, args->in, scratch);
    cuda_launched(be, "quantize");
}
