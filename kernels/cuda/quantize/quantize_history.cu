/* Updates the quantization records at the end of a step: a few hundred, one thread per tensor. */
#include "kernels/cuda/cuda.h"

enum { THREADS = 256 };

/* One block: integers, so the order of sums does not matter. */
static __global__ void __launch_bounds__(THREADS)
    count_kernel(struct step_state *state, const struct quantize_record *records, int64_t ranks,
                 int64_t each, int64_t count) {
    __shared__ int32_t not_finite, zero;
    if (threadIdx.x == 0) not_finite = zero = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < ranks * count; i += THREADS) {
        const struct quantize_record *record = &records[i / count * each + i % count];
        if (record->not_finite) atomicAdd(&not_finite, record->not_finite);
        if (record->zero) atomicAdd(&zero, record->zero);
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    state->quantized_not_finite = not_finite;
    state->quantized_zero = zero;
}

static __global__ void __launch_bounds__(THREADS)
    history_kernel(float *amax, float *history, const struct quantize_record *records,
                   const struct step_inputs *__restrict__ inputs, int64_t ranks, int64_t each,
                   int64_t count, int64_t length, float margin) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float seen = 0, largest = 0;
    if (i >= count) return;
    for (int64_t rank = 0; rank < ranks; rank++) seen = fmaxf(seen, records[rank * each + i].amax);
    history[inputs->step % length * count + i] = seen;
    for (int64_t row = 0; row < length; row++) largest = fmaxf(largest, history[row * count + i]);
    amax[i] = largest * margin;
}

void cuda_quantize_history(struct backend *be, const struct quantize_history_args *args) {
    cudaStream_t stream = cuda_state(be)->compute;
    LAUNCH(count_kernel, 1, THREADS, 0, stream, args->state, args->records, args->ranks, args->each,
           args->count);
    if (args->history && args->count > 0)
        LAUNCH(history_kernel, (unsigned)blocks_of(args->count, THREADS), THREADS, 0, stream,
               args->amax, args->history, args->records, args->inputs, args->ranks, args->each,
               args->count, args->length, args->margin);
    cuda_launched(be, "quantize_history");
}
