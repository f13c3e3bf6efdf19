/* Values of codes in blocks. A thread has a pack of 8 neighbours of a row. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/flat.h"

#include "kernels/block_scale.h"

enum { THREADS = 256 };

/* A matrix of codes. */
struct coded {
    const uint8_t *codes, *scales;
    struct quantize_format format;
    int64_t columns, across; /* columns of the matrix, and of the scales */
};

template <enum dtype ELEMENT>
static __device__ __forceinline__ float value_of(const struct coded &m, uint32_t code, int64_t row,
                                                 int64_t column) {
    uint8_t scale = m.scales[row / m.format.rows * m.across + column / m.format.columns];
    return __fmul_rn(element_value(code, ELEMENT), block_scale_value(scale, m.format.scale));
}

/* PACKED: 8 divides the columns. count: packs, or single values. */
template <enum dtype ELEMENT, bool PACKED>
static __global__ void __launch_bounds__(THREADS)
    dequantize_kernel(__nv_bfloat16 *out, int64_t count, struct coded m) {
    constexpr int N = PACKED ? PACK : 1, BITS = ELEMENT == DTYPE_E2M1 ? 4 : 8;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, at = i * N;
    int64_t row = at / m.columns, column = at % m.columns;
    float values[N];
    if (i >= count) return;
    uint64_t codes;
    if (!PACKED) codes = m.codes[at * BITS / 8] >> (at * BITS % 8);
    else if (BITS == 4) codes = ((const uint32_t *)m.codes)[i];
    else codes = ((const uint64_t *)m.codes)[i];
#pragma unroll
    for (int k = 0; k < N; k++)
        values[k] = value_of<ELEMENT>(m, (uint32_t)(codes >> (BITS * k)), row, column + k);
    if (PACKED) store_chunk<N>(out + at, values);
    else out[at] = narrow<__nv_bfloat16>(values[0]);
}

template <enum dtype ELEMENT>
static void dequantize(struct backend *be, const struct dequantize_blocks_args *args) {
    const struct coded m = {(const uint8_t *)args->codes->data,
                            (const uint8_t *)args->block_scales->data, args->format,
                            tensor_columns(args->out), tensor_columns(args->block_scales)};
    __nv_bfloat16 *out = (__nv_bfloat16 *)args->out->data;
    bool packed = m.columns % PACK == 0 && aligned_to(out, 16) && aligned_to(m.codes, PACK);
    int64_t count = tensor_count(args->out) / (packed ? PACK : 1);
    LAUNCH((packed ? dequantize_kernel<ELEMENT, true> : dequantize_kernel<ELEMENT, false>),
           (unsigned)blocks_of(count, THREADS), THREADS, 0, cuda_state(be)->compute, out, count, m);
}

void cuda_dequantize_blocks(struct backend *be, const struct dequantize_blocks_args *args) {
    assert(args->out->dtype == DTYPE_BF16 && args->codes->dtype == args->format.element);
    assert(args->block_scales->dtype == args->format.scale);
    if (tensor_count(args->out) == 0) return;
    if (args->format.element == DTYPE_E4M3) dequantize<DTYPE_E4M3>(be, args);
    else if (args->format.element == DTYPE_E5M2) dequantize<DTYPE_E5M2>(be, args);
    else dequantize<DTYPE_E2M1>(be, args);
    cuda_launched(be, "dequantize_blocks");
}
