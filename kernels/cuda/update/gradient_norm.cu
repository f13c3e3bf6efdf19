/* The norm of all gradients, found_inf and the clip factor: one pass over memory, then one block.
 *
 * Squares must be added as if in fp64 (see kernels/cpu/gradient_norm.c), but most GPUs have hardly
 * any fp64 units. So a thread squares and adds its few values of an iteration in fp32, which takes
 * two instructions a value, and adds that sum to an fp64 one. If the fp32 sum is too large or too
 * small to be accurate, or not a number, the same values are added again in fp64.
 *
 * found_inf needs nothing else: squares of fp32 cannot overflow fp64, and an infinite or undefined
 * gradient makes the norm so. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/reduce.h"

#include <float.h>

enum { SQUARES_THREADS = 256, CHUNKS = 4, ITERATIONS = 4, FINISH_THREADS = 512 };

/* Sum of squares of one iteration of one thread. */
template <bool WHOLE, int N, typename T>
static __device__ __forceinline__ double squares(const T *gradients, int64_t at, int64_t count,
                                                 float unscale) {
    float g[CHUNKS][N], total = 0;
    for (int c = 0; c < CHUNKS; c++) {
        int64_t i = at + c * SQUARES_THREADS * N;
        load_flat<WHOLE, N>(g[c], gradients + i, count - i);
    }
    for (int c = 0; c < CHUNKS; c++) {
        float sum = 0;
        for (int k = 0; k < N; k++) {
            g[c][k] *= unscale;
            sum += g[c][k] * g[c][k];
        }
        total += sum;
    }
    if (total >= 0x1p-80f && total <= FLT_MAX) return total;
    double exact = 0;
    for (int c = 0; c < CHUNKS; c++)
        for (int k = 0; k < N; k++) exact += (double)g[c][k] * g[c][k];
    return exact;
}

template <typename T> static constexpr __host__ __device__ int64_t iteration_values() {
    return (int64_t)SQUARES_THREADS * CHUNKS * chunk_values(sizeof(T));
}

/* partial[b] = sum of squares of the b-th share. Shares depend on the count alone. */
template <typename T>
static __global__ void __launch_bounds__(SQUARES_THREADS)
    squares_kernel(double *__restrict__ partial, const T *__restrict__ gradients, int64_t count,
                   const struct step_state *__restrict__ state, bool aligned) {
    constexpr int N = chunk_values(sizeof(T));
    constexpr int64_t STEP = iteration_values<T>();
    /* In fp32: no quotient of two fp32 numbers is so near the middle between two others that
     * rounding it to fp64 first could make a difference. */
    float unscale = 1.0f / state->loss_scale;
    double total = 0;
#pragma unroll 1
    for (int i = 0; i < ITERATIONS; i++) {
        int64_t first = ((int64_t)blockIdx.x * ITERATIONS + i) * STEP;
        int64_t at = first + (int64_t)threadIdx.x * N;
        if (first >= count) break;
        if (aligned && first + STEP <= count)
            total += squares<true, N>(gradients, at, count, unscale);
        else total += squares<false, N>(gradients, at, count, unscale);
    }
    total = block_sum<SQUARES_THREADS>(total);
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

static __global__ void __launch_bounds__(FINISH_THREADS)
    finish_kernel(struct step_state *state, const double *__restrict__ partial, int64_t blocks,
                  float grad_clip) {
    double total = 0;
    for (int64_t i = threadIdx.x; i < blocks; i += FINISH_THREADS) total += partial[i];
    total = block_sum<FINISH_THREADS>(total);
    if (threadIdx.x != 0) return;
    float norm = (float)sqrt(total);
    /* If the norm overflows fp32, every gradient would be clipped to zero. */
    state->gradient_norm = norm;
    state->found_inf = !(norm <= FLT_MAX);
    float factor = grad_clip / (norm + 1e-6f);
    state->clip_factor = grad_clip > 0 && factor < 1 ? factor : 1;
}

int64_t cuda_square_share(enum dtype dtype) {
    int64_t share = 0;
    STORAGE_SWITCH(dtype, T, { share = iteration_values<T>() * ITERATIONS; });
    return share;
}

void cuda_gradient_squares(struct backend *be, const struct gradient_squares_args *args) {
    const struct tensor *gradients = args->gradients;
    int64_t shares = backend_squares(be, gradients);
    bool aligned = aligned_to(gradients->data, 16);
    if (shares == 0) return;
    STORAGE_SWITCH(gradients->dtype, T,
                   LAUNCH((squares_kernel<T>), (unsigned)shares, SQUARES_THREADS, 0,
                          cuda_state(be)->compute, args->squares, (const T *)gradients->data,
                          tensor_count(gradients), args->state, aligned));
    cuda_launched(be, "gradient_squares");
}

void cuda_gradient_norm(struct backend *be, const struct gradient_norm_args *args) {
    LAUNCH(finish_kernel, 1, FINISH_THREADS, 0, cuda_state(be)->compute, args->state, args->squares,
           args->count, args->grad_clip);
    cuda_launched(be, "gradient_norm");
}
