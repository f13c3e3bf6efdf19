/* The pass over the sums of a matmul for what the library has not fused. */
#include "kernels/cuda/matmul/matmul_store.h"

#include "kernels/cuda/storage.h"

enum { STORE_THREADS = 256 };

/* Scales the values from element `at` on. */
static __device__ __forceinline__ void scale_pack(float *values, struct sum_scales scales,
                                                  int64_t at, int64_t columns, int count) {
    int64_t row = scales.per_row || scales.per_column ? at / columns : 0,
            column = at - row * columns;
    float a = scales.a[0], b = scales.b[0];
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        if (scales.per_row && i < count) a = scales.a[row];
        if (scales.per_column && i < count) b = scales.b[column];
        values[i] *= a * b;
        if (++column == columns) column = 0, row++;
    }
}

/* out [rows, columns] (+)= product * scales + bias; product may be out itself, and bias NULL. */
template <typename Out, typename Bias>
static __global__ void store_kernel(Out *out, const float *product, struct sum_scales scales,
                                    const Bias *bias, int64_t count, int64_t columns,
                                    bool accumulate, bool packed) {
    int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * PACK;
    if (at >= count) return;
    int some = count - at < PACK ? (int)(count - at) : (int)PACK;
    bool whole = packed && some == PACK;
    float values[PACK], more[PACK];
    if (whole) load_pack(values, product + at);
    else load_some(values, product + at, some);
    if (scales.a) scale_pack(values, scales, at, columns, some);
    if (bias) {
        int64_t column = at % columns;
#pragma unroll
        for (int i = 0; i < PACK; i++) {
            if (i < some) values[i] += widen(bias[column]);
            if (++column == columns) column = 0;
        }
    }
    if (accumulate) {
        if (whole) load_pack(more, out + at);
        else load_some(more, out + at, some);
#pragma unroll
        for (int i = 0; i < PACK; i++) values[i] += more[i];
    }
    if (whole) store_pack(out + at, values);
    else store_some(out + at, values, some);
}

void cuda_matmul_store(struct backend *be, const struct tensor *out, const float *product,
                       struct sum_scales scales, const struct tensor *bias, bool accumulate) {
    int64_t count = tensor_count(out), columns = tensor_columns(out);
    unsigned blocks = (unsigned)blocks_of(count, STORE_THREADS * PACK);
    bool packed = (uintptr_t)out->data % 16 == 0 && (uintptr_t)product % 16 == 0;
    enum dtype bias_dtype = bias ? bias->dtype : DTYPE_F32;
    const void *added = bias ? bias->data : NULL;
    STORAGE_SWITCH(out->dtype, Out,
                   STORAGE_SWITCH(bias_dtype, Bias,
                                  LAUNCH((store_kernel<Out, Bias>), blocks, STORE_THREADS, 0,
                                         cuda_state(be)->compute, (Out *)out->data, product, scales,
                                         (const Bias *)added, count, columns, accumulate, packed)));
    cuda_launched(be, "matmul");
}
