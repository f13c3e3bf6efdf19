/* Simple passes over arrays: casts, soft caps, copies, zeros, and the mean loss. */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/rounding.h"
#include "kernels/cuda/reduce.h"

enum { CAST_THREADS = 256, CAST_CHUNKS = 4, SUM_THREADS = 1024 };

template <bool WHOLE, typename To, typename From, int N>
static __device__ __forceinline__ void cast_share(To *out, const From *in, int64_t first,
                                                  int64_t count) {
    float values[CAST_CHUNKS][N];
    int64_t at = first + (int64_t)threadIdx.x * N;
    for (int c = 0; c < CAST_CHUNKS; c++) {
        int64_t i = at + c * CAST_THREADS * N;
        load_flat<WHOLE, N>(values[c], in + i, count - i);
    }
    for (int c = 0; c < CAST_CHUNKS; c++) {
        int64_t i = at + c * CAST_THREADS * N;
        store_flat<WHOLE, N>(out + i, values[c], count - i);
    }
}

template <typename To, typename From>
static __global__ void __launch_bounds__(CAST_THREADS)
    cast_kernel(To *__restrict__ out, const From *__restrict__ in, int64_t count, bool aligned) {
    constexpr int N = chunk_values(sizeof(To), sizeof(From)),
                  SHARE = CAST_THREADS * CAST_CHUNKS * N;
    int64_t first = (int64_t)blockIdx.x * SHARE;
    if (aligned && first + SHARE <= count) cast_share<true, To, From, N>(out, in, first, count);
    else cast_share<false, To, From, N>(out, in, first, count);
}

template <typename To, typename From>
static void cast(struct backend *be, const struct tensor *out, const struct tensor *in) {
    constexpr int N = chunk_values(sizeof(To), sizeof(From));
    int64_t count = tensor_count(out);
    unsigned blocks = (unsigned)blocks_of(count, CAST_THREADS * CAST_CHUNKS * N);
    bool aligned = aligned_to(out->data, N * sizeof(To)) && aligned_to(in->data, N * sizeof(From));
    LAUNCH((cast_kernel<To, From>), blocks, CAST_THREADS, 0, cuda_state(be)->compute,
           (To *)out->data, (const From *)in->data, count, aligned);
}

void cuda_cast(struct backend *be, const struct cast_args *args) {
    assert(tensor_count(args->in) == tensor_count(args->out));
    if (tensor_count(args->out) == 0) return;
    if (args->masters && args->out->dtype == DTYPE_BF16) {
        assert(args->in->dtype == DTYPE_F32);
        cast<struct bf16_copy, float>(be, args->out, args->in);
    } else {
        STORAGE_SWITCH(
            args->out->dtype, To,
            STORAGE_SWITCH(args->in->dtype, From, (cast<To, From>(be, args->out, args->in))));
    }
    cuda_launched(be, "cast");
}

/* A pack for each thread. Columns are those of the array as a whole. */
template <bool PACKED, typename T>
static __global__ void __launch_bounds__(CAST_THREADS)
    softcap_kernel(T *inout, int64_t columns, float cap, float inverse_cap) {
    int64_t column = ((int64_t)blockIdx.x * CAST_THREADS + threadIdx.x) * PACK;
    int count = columns_from(column, columns);
    float x[PACK];
    if (count <= 0) return;
    load_columns<PACKED>(x, inout + column, count);
    for (int i = 0; i < PACK; i++) x[i] = cap * tanhf(x[i] * inverse_cap);
    store_columns<PACKED>(inout + column, x, count);
}

void cuda_softcap(struct backend *be, const struct softcap_args *args) {
    const struct tensor *inout = args->inout;
    int64_t count = tensor_count(inout);
    assert(args->cap > 0);
    if (count == 0) return;
    STORAGE_SWITCH(
        inout->dtype, T,
        LAUNCH((rows_are_packed(inout) ? softcap_kernel<true, T> : softcap_kernel<false, T>),
               (unsigned)blocks_of(count, (int64_t)CAST_THREADS * PACK), CAST_THREADS, 0,
               cuda_state(be)->compute, (T *)inout->data, count, args->cap, 1 / args->cap));
    cuda_launched(be, "softcap");
}

/* Copies in units of 16 bytes where rows consist of them, else of one value. */
template <typename Unit>
static __global__ void __launch_bounds__(CAST_THREADS)
    copy_last_columns_kernel(Unit *__restrict__ out, const Unit *__restrict__ in, int64_t count,
                             int64_t columns, int64_t in_columns) {
    int64_t i = (int64_t)blockIdx.x * CAST_THREADS + threadIdx.x;
    if (i < count) out[i] = in[(i / columns + 1) * in_columns - columns + i % columns];
}

template <typename Unit>
static void copy_last_columns(struct backend *be, const struct copy_last_columns_args *args,
                              int64_t values) {
    int64_t count = tensor_count(args->out) / values;
    LAUNCH(copy_last_columns_kernel<Unit>, (unsigned)blocks_of(count, CAST_THREADS), CAST_THREADS,
           0, cuda_state(be)->compute, (Unit *)args->out->data, (const Unit *)args->in->data, count,
           tensor_columns(args->out) / values, tensor_columns(args->in) / values);
}

void cuda_copy_last_columns(struct backend *be, const struct copy_last_columns_args *args) {
    const struct tensor *out = args->out, *in = args->in;
    int64_t values = 16 / (int64_t)dtype_bytes(out->dtype);
    assert(out->dtype == in->dtype && tensor_rows(out) == tensor_rows(in));
    assert(tensor_columns(out) <= tensor_columns(in));
    if (tensor_count(out) == 0) return;
    if (aligned_to(out->data, 16) && aligned_to(in->data, 16) &&
        tensor_columns(out) % values == 0 && tensor_columns(in) % values == 0)
        copy_last_columns<uint4>(be, args, values);
    else if (out->dtype == DTYPE_F32) copy_last_columns<uint32_t>(be, args, 1);
    else copy_last_columns<uint16_t>(be, args, 1);
    cuda_launched(be, "copy_last_columns");
}

void cuda_clear(struct backend *be, const struct clear_args *args) {
    if (args->bytes == 0) return;
    cuda_failed(be, cudaMemsetAsync(args->data, 0, args->bytes, cuda_state(be)->compute), "clear");
}

/* One block: the losses of a micro-batch are a few hundred KB at most, and one fixed order of
 * addition gives the same sum every time. */
static __global__ void loss_sum_kernel(float *total, const float *__restrict__ losses,
                                       int64_t count,
                                       const struct step_inputs *__restrict__ inputs) {
    float sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += SUM_THREADS) sum += losses[i];
    sum = block_sum<SUM_THREADS>(sum);
    if (threadIdx.x == 0) *total += (inputs ? inputs->loss_weight : 1.0f) * sum;
}

void cuda_loss_sum(struct backend *be, const struct loss_sum_args *args) {
    LAUNCH(loss_sum_kernel, 1, SUM_THREADS, 0, cuda_state(be)->compute, args->total, args->losses,
           args->count, args->inputs);
    cuda_launched(be, "loss_sum");
}
