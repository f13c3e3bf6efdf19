/* Simple passes over arrays: casts, soft caps, copies, zeros, and the mean loss. */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/map.h"
#include "kernels/cuda/rounding.h"
#include "kernels/cuda/reduce.h"

enum { PACK_THREADS = 256, SUM_THREADS = 1024 };

struct cast {
    enum { CHUNKS = 4, TRACKS = true, IN_PLACE = false };
};

template <int N>
static __device__ __forceinline__ void apply(const struct cast &, float (&)[N], const float (&)[N],
                                             int64_t) {}

void cuda_cast(struct backend *be, const struct cast_args *args) {
    const struct tensor *out = args->out, *in = args->in;
    if (args->masters && out->dtype == DTYPE_BF16 && tensor_count(out) > 0) {
        assert(in->dtype == DTYPE_F32 && tensor_count(in) == tensor_count(out));
        map_arrays<struct bf16_copy, float, struct nothing>(be, cast(), out, in, NULL, NULL);
    } else map_tensor(be, cast(), out, in, args->track_amax);
    cuda_launched(be, "cast");
}

/* A pack for each thread. Columns are those of the array as a whole. */
template <bool PACKED, typename T>
static __global__ void __launch_bounds__(PACK_THREADS)
    softcap_kernel(T *inout, int64_t columns, float cap, float inverse_cap) {
    int64_t column = ((int64_t)blockIdx.x * PACK_THREADS + threadIdx.x) * PACK;
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
               (unsigned)blocks_of(count, (int64_t)PACK_THREADS * PACK), PACK_THREADS, 0,
               cuda_state(be)->compute, (T *)inout->data, count, args->cap, 1 / args->cap));
    cuda_launched(be, "softcap");
}

/* Copies in units of 16 bytes where rows consist of them, else of one value. */
template <typename Unit>
static __global__ void __launch_bounds__(PACK_THREADS)
    copy_last_columns_kernel(Unit *__restrict__ out, const Unit *__restrict__ in, int64_t count,
                             int64_t columns, int64_t in_columns,
                             const struct decode_keys *__restrict__ keys, int64_t stride) {
    int64_t i = (int64_t)blockIdx.x * PACK_THREADS + threadIdx.x;
    if (i >= count) return;
    int64_t row = i / columns, to = keys ? decode_last_row(&keys[row], stride) : row;
    out[to * columns + i % columns] = in[(row + 1) * in_columns - columns + i % columns];
}

template <typename Unit>
static void copy_last_columns(struct backend *be, const struct copy_last_columns_args *args,
                              int64_t values) {
    int64_t columns = tensor_columns(args->out) / values, count = tensor_rows(args->in) * columns;
    LAUNCH(copy_last_columns_kernel<Unit>, (unsigned)blocks_of(count, PACK_THREADS), PACK_THREADS,
           0, cuda_state(be)->compute, (Unit *)args->out->data, (const Unit *)args->in->data, count,
           columns, tensor_columns(args->in) / values, args->keys, args->stride);
}

void cuda_copy_last_columns(struct backend *be, const struct copy_last_columns_args *args) {
    const struct tensor *out = args->out, *in = args->in;
    int64_t values = 16 / (int64_t)dtype_bytes(out->dtype);
    assert(out->dtype == in->dtype && tensor_columns(out) <= tensor_columns(in));
    assert(args->keys || tensor_rows(out) == tensor_rows(in));
    if (tensor_count(out) == 0 || tensor_rows(in) == 0) return;
    if (aligned_to(out->data, 16) && aligned_to(in->data, 16) &&
        tensor_columns(out) % values == 0 && tensor_columns(in) % values == 0)
        copy_last_columns<uint4>(be, args, values);
    else if (out->dtype == DTYPE_F32) copy_last_columns<uint32_t>(be, args, 1);
    else copy_last_columns<uint16_t>(be, args, 1);
    cuda_launched(be, "copy_last_columns");
}

template <typename Unit>
static __global__ void __launch_bounds__(PACK_THREADS)
    gather_rows_kernel(Unit *__restrict__ out, const Unit *__restrict__ in,
                       const int32_t *__restrict__ rows, int64_t count, int64_t columns) {
    int64_t i = (int64_t)blockIdx.x * PACK_THREADS + threadIdx.x;
    if (i >= count) return;
    int64_t row = rows[i / columns];
    Unit zero = {};
    out[i] = row < 0 ? zero : in[row * columns + i % columns];
}

template <typename Unit>
static void gather_rows(struct backend *be, const struct gather_rows_args *args, int64_t values) {
    int64_t count = tensor_count(args->out) / values;
    LAUNCH(gather_rows_kernel<Unit>, (unsigned)blocks_of(count, PACK_THREADS), PACK_THREADS, 0,
           cuda_state(be)->compute, (Unit *)args->out->data, (const Unit *)args->in->data,
           args->rows, count, tensor_columns(args->out) / values);
}

void cuda_gather_rows(struct backend *be, const struct gather_rows_args *args) {
    const struct tensor *out = args->out, *in = args->in;
    int64_t values = 16 / (int64_t)dtype_bytes(out->dtype);
    assert(out->dtype == in->dtype && tensor_columns(out) == tensor_columns(in));
    if (tensor_count(out) == 0) return;
    if (aligned_to(out->data, 16) && aligned_to(in->data, 16) && tensor_columns(out) % values == 0)
        gather_rows<uint4>(be, args, values);
    else if (out->dtype == DTYPE_F32) gather_rows<uint32_t>(be, args, 1);
    else gather_rows<uint16_t>(be, args, 1);
    cuda_launched(be, "gather_rows");
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
