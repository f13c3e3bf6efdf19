/* Values of stored weights. A block of threads first computes the values of all codes, of scales
 * and of elements, in shared memory; 16 values are in 16 banks, so their lookups do not conflict.
 * A thread writes packs of 8 elements. The limit is memory bandwidth: half a byte or a byte is read
 * per element, and 2 are written. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/flat.h"
#include "kernels/code_value.h"
#include "kernels/float8.h"

enum { THREADS = 256, PACKS = 4 /* packs that a thread writes */ };

/* A stored matrix, as the kernel reads it. */
struct stored_matrix {
    const uint8_t *codes;
    const void *scales; /* fp32, or codes of the dynamic map if there is a second level */
    const float *second_scales, *mean;
    uint32_t count, block, second_block;
};

static __device__ __forceinline__ float scale_of(const struct stored_matrix &in,
                                                 const float *dynamic8, uint32_t block) {
    if (in.second_block == 0) return ((const float *)in.scales)[block];
    float value = dynamic8[((const uint8_t *)in.scales)[block]];
    return __fadd_rn(__fmul_rn(value, in.second_scales[block / in.second_block]), *in.mean);
}

/* Loads the codes of a pack, whose first element is number i. Codes beyond the end are 0. */
template <enum dtype DTYPE>
static __device__ __forceinline__ void load_codes(uint32_t codes[PACK],
                                                  const struct stored_matrix &in, uint32_t i) {
    constexpr int BITS = DTYPE == DTYPE_NF4 ? 4 : 8, BYTES = PACK * BITS / 8;
    uint8_t bytes[BYTES];
    if (i + PACK <= in.count) {
        struct chunk<uint8_t, BYTES> moved = load_chunk<BYTES>(in.codes + i / PACK * BYTES);
        memcpy((void *)bytes, &moved.bits, sizeof bytes);
    } else {
        for (int k = 0; k < BYTES; k++)
            bytes[k] = i + (uint32_t)(k * 8 / BITS) < in.count ? in.codes[i / PACK * BYTES + k] : 0;
    }
    for (int k = 0; k < PACK; k++)
        codes[k] = BITS == 8 ? bytes[k * BYTES / PACK]
                             : (uint32_t)(bytes[k * BYTES / PACK] >> (k % 2 ? 0 : 4) & 15);
}

/* If ALIGNED, a pack is written at once and lies in one block. */
template <bool ALIGNED, enum dtype DTYPE, typename T>
static __device__ __forceinline__ void store_values(T *out, const struct stored_matrix &in,
                                                    const float *dynamic8, const float *nf4,
                                                    uint32_t i) {
    uint32_t codes[PACK];
    float values[PACK], scale = 0;
    load_codes<DTYPE>(codes, in, i);
    for (int k = 0; k < PACK; k++) {
        if (k == 0 || !ALIGNED)
            scale = i + k < in.count ? scale_of(in, dynamic8, (i + k) / in.block) : 0;
        float value = DTYPE == DTYPE_NF4 ? nf4[codes[k]] : f8_widen(codes[k], DTYPE);
        values[k] = __fmul_rn(value, scale);
    }
    if (ALIGNED && i + PACK <= in.count) store_pack(out + i, values);
    else store_some(out + i, values, (int)(in.count - i < PACK ? in.count - i : (uint32_t)PACK));
}

template <bool ALIGNED, enum dtype DTYPE, typename T>
static __global__ void __launch_bounds__(THREADS)
    dequantize_kernel(T *__restrict__ out, const struct stored_matrix in) {
    __shared__ float dynamic8[256], nf4[16];
    if (in.second_block) dynamic8[threadIdx.x] = dynamic8_value(threadIdx.x);
    if (DTYPE == DTYPE_NF4 && threadIdx.x < 16) {
        constexpr float values[] = NF4_VALUES;
        for (int k = 0; k < 16; k++)
            if (threadIdx.x == (unsigned)k) nf4[k] = values[k];
    }
    __syncthreads();
    for (int k = 0; k < PACKS; k++) {
        uint64_t i = ((uint64_t)(blockIdx.x * PACKS + k) * THREADS + threadIdx.x) * PACK;
        if (i < in.count) store_values<ALIGNED, DTYPE>(out, in, dynamic8, nf4, (uint32_t)i);
    }
}

template <enum dtype DTYPE, typename T>
static void dequantize(struct backend *be, const struct tensor *out, struct stored_matrix in) {
    unsigned blocks = (unsigned)blocks_of(in.count, THREADS * PACKS * PACK);
    bool aligned = aligned_to(out->data, 16) && in.block % PACK == 0;
    LAUNCH((aligned ? dequantize_kernel<true, DTYPE, T> : dequantize_kernel<false, DTYPE, T>),
           blocks, THREADS, 0, cuda_state(be)->compute, (T *)out->data, in);
}

void cuda_dequantize(struct backend *be, const struct dequantize_args *args) {
    const struct quantized_weight *w = args->in;
    const struct tensor *out = args->out;
    assert(tensor_count(out) == w->count && w->count < (int64_t)1 << 32);
    assert(aligned_to(w->codes.data, PACK));
    const struct stored_matrix in = {
        (const uint8_t *)w->codes.data, w->scales.data,     (const float *)w->second_scales.data,
        (const float *)w->mean.data,    (uint32_t)w->count, (uint32_t)w->block,
        (uint32_t)w->second_block};
    if (w->count == 0) return;
    if (w->codes.dtype == DTYPE_NF4)
        STORAGE_SWITCH(out->dtype, T, (dequantize<DTYPE_NF4, T>(be, out, in)));
    else STORAGE_SWITCH(out->dtype, T, (dequantize<DTYPE_E4M3, T>(be, out, in)));
    cuda_launched(be, "dequantize");
}
