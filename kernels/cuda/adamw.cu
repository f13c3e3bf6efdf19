/* AdamW in one pass: reads gradient, weight and both moments, writes the last three. With fp32
 * gradients and moments it moves 28 bytes for each parameter, 30 with a 16-bit copy of the weight;
 * with split master weights and 16-bit gradients and moments 18.
 *
 * found_inf, the loss scale, the clip factor, the learning rate and the number of updates are in
 * device memory. Each block computes the scalars that depend on them, in fp64, as PyTorch does. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/moments.h"
#include "kernels/cuda/rounding.h"

/* A thread has one chunk of each of four arrays in flight, as many bytes as four chunks of one
 * array. */
enum { THREADS = 256, ITERATIONS = 4 };

struct scalars {
    float beta1_rest;        /* 1 - beta1 */
    float beta2, beta2_rest; /* beta2, and 1 - beta2 */
    float keep;              /* from here on filled in on the device: 1 - lr * weight_decay */
    float step_size;         /* lr * root2 / (1 - beta1^t) */
    float epsilon; /* epsilon * root2, where root2 = sqrt(1 - beta2^t); see kernels/cpu/adamw.c */
    float unscale; /* 1 / loss_scale */
    float clip;
    struct rounding_key key;
};

/* Arguments of an update that scalars depend on. */
struct rates {
    double beta1, beta2, epsilon, weight_decay, lr_factor;
};

/* base^n by squaring, far cheaper than pow, which has to take logarithms. The error grows to n
 * 2^-53 of a power that falls faster. */
static __device__ __forceinline__ double power(double base, uint32_t n) {
    double result = 1;
    for (; n; n >>= 1) {
        if (n & 1) result *= base;
        base *= base;
    }
    return result;
}

static __device__ __forceinline__ void finish_scalars(struct scalars *s,
                                                      const struct step_state *state,
                                                      const struct step_inputs *inputs,
                                                      const struct rates *rates) {
    uint32_t t = (uint32_t)state->updates + 1;
    double root2 = sqrt(1.0 - power(rates->beta2, t));
    double lr = inputs->lr * rates->lr_factor;
    double decay = __dmul_rn(lr, rates->weight_decay); /* not part of a multiply-add */
    s->keep = (float)(1.0 - decay);
    s->step_size = (float)(lr * root2 / (1.0 - power(rates->beta1, t)));
    s->epsilon = (float)(rates->epsilon * root2);
    s->key = inputs->key;
    s->unscale = 1.0f / state->loss_scale; /* rounded from fp64 as in gradient_norm.cu */
    s->clip = state->clip_factor;
}

/* The file is compiled without fused multiply-adds (cuda.mk); these three, written out, save
 * registers. */
static __device__ __forceinline__ void update(float *master, float *moment1, float *moment2,
                                              float gradient, const struct scalars *s) {
    float g = gradient * s->unscale * s->clip;
    float m = fmaf(s->beta1_rest, g - *moment1, *moment1);
    float v = fmaf(s->beta2_rest * g, g, s->beta2 * *moment2);
    *master = fmaf(s->keep, *master, -(s->step_size * m / (sqrtf(v) + s->epsilon)));
    *moment1 = m;
    *moment2 = v;
}

/* Master is float or struct upper_bits. */
template <typename Gradient, typename Master, typename Copy, typename Moment> struct arrays {
    Master *master;
    uint16_t *remainder; /* lower halves of split master weights */
    Moment *moment1, *moment2;
    Copy *copy; /* 16-bit copy, or NULL */
    const Gradient *gradients;
    uint32_t first;
    struct moment_scales scales; /* of moments in 8 bits */
};

template <bool WHOLE, int N>
static __device__ __forceinline__ void store_moments(const float *values1, const float *values2,
                                                     float *moment1, float *moment2, int64_t left,
                                                     struct rounding_key, uint32_t) {
    store_flat<WHOLE, N>(moment1, values1, left);
    store_flat<WHOLE, N>(moment2, values2, left);
}

/* One draw of 32 bits rounds both moments of an element. */
template <bool WHOLE, int N>
static __device__ __forceinline__ void
store_moments(const float *values1, const float *values2, __nv_bfloat16 *moment1,
              __nv_bfloat16 *moment2, int64_t left, struct rounding_key key, uint32_t index) {
    uint32_t bits1[N], bits2[N];
    for (int i = 0; i < N; i++) {
        uint32_t random = rounding_bits(key, index + (uint32_t)i);
        bits1[i] = bf16_stochastic(__float_as_uint(values1[i]), random & 0xffff);
        bits2[i] = bf16_stochastic(__float_as_uint(values2[i]), random >> 16);
    }
    store_bits<WHOLE, N>((uint16_t *)moment1, bits1, left);
    store_bits<WHOLE, N>((uint16_t *)moment2, bits2, left);
}

/* Updates one chunk of weights at `at`, and its moments in registers. */
template <bool WHOLE, int N, typename Arrays>
static __device__ __forceinline__ void update_weights(const Arrays *a, int64_t at, int64_t left,
                                                      const struct scalars *s, float *moment1,
                                                      float *moment2) {
    float gradient[N], master[N];
    load_flat<WHOLE, N>(gradient, a->gradients + at, left);
    load_masters<WHOLE, N>(master, a->master, a->remainder, at, left);
    for (int i = 0; i < N; i++) update(&master[i], &moment1[i], &moment2[i], gradient[i], s);
    store_masters<WHOLE, N>(master, a->master, a->remainder, at, left);
    if (a->copy) store_flat<WHOLE, N>(a->copy + at, master, left);
}

/* One chunk at `at`. */
template <bool WHOLE, int N, typename Arrays>
static __device__ __forceinline__ void update_chunk(const Arrays *a, int64_t at, int64_t left,
                                                    const struct scalars *s) {
    float moment1[N], moment2[N];
    load_flat<WHOLE, N>(moment1, a->moment1 + at, left);
    load_flat<WHOLE, N>(moment2, a->moment2 + at, left);
    update_weights<WHOLE, N>(a, at, left, s, moment1, moment2);
    store_moments<WHOLE, N>(moment1, moment2, a->moment1 + at, a->moment2 + at, left, s->key,
                            a->first + (uint32_t)at);
}

/* A block of moments in 8 bits. All lanes of a warp call it. */
template <bool WHOLE, int N, typename Arrays>
static __device__ __forceinline__ void update_block(const Arrays *a, int64_t block, int64_t count,
                                                    const struct scalars *s,
                                                    const struct moment_tables *tables) {
    constexpr int CHUNKS = chunks_of_a_block<N>();
    const struct coded *const codes[2] = {a->moment1, a->moment2};
    const int64_t first = block * MOMENT_BLOCK + (int64_t)(threadIdx.x % WARP) * N;
    float values[2][CHUNKS * N];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int64_t at = first + (int64_t)c * WARP * N;
        load_codes<N>(&values[0][c * N], codes[0] + at, a->scales.of[0][block], 1, tables);
        load_codes<N>(&values[1][c * N], codes[1] + at, a->scales.of[1][block], 0, tables);
        update_weights<WHOLE, N>(a, at, count - at, s, &values[0][c * N], &values[1][c * N]);
    }
#pragma unroll
    for (int moment = 0; moment < 2; moment++) {
        const float scale = block_scale<CHUNKS * N>(values[moment]);
        if (threadIdx.x % WARP == 0) a->scales.of[moment][block] = scale;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int64_t at = first + (int64_t)c * WARP * N;
            const struct code_rounding rounding = {tables, a->scales.stochastic, s->key,
                                                   a->first + (uint32_t)at};
            store_codes<N>((moment ? a->moment2 : a->moment1) + at, &values[moment][c * N],
                           1 / scale, moment == 0, &rounding);
        }
    }
}

/* Number of values of a chunk: a warp has a block of codes, in as many chunks as it takes. */
template <typename Gradient, typename Master, typename Moment>
static constexpr __host__ __device__ int values_of_a_chunk() {
    return chunk_values(sizeof(Gradient), sizeof(Master), sizeof(Moment) == 1 ? 2 : sizeof(Moment));
}

template <typename Gradient, typename Master, typename Copy, typename Moment>
static __global__ void __launch_bounds__(THREADS)
    adamw_kernel(struct arrays<Gradient, Master, Copy, Moment> arrays, int64_t count, bool aligned,
                 const struct step_state *__restrict__ state,
                 const struct step_inputs *__restrict__ inputs, struct scalars given,
                 struct rates rates) {
    constexpr int N = values_of_a_chunk<Gradient, Master, Moment>();
    constexpr int STEP = THREADS * N, WARPS = THREADS / WARP;
    __shared__ struct scalars shared;
    const struct moment_tables *tables = NULL;
    if (state->found_inf) return; /* the same for all threads of all blocks */
    if constexpr (sizeof(Moment) == 1) tables = moment_tables_make();
    if (threadIdx.x == 0) {
        finish_scalars(&given, state, inputs, &rates);
        shared = given;
    }
    __syncthreads();
    struct scalars scalars = shared;
#pragma unroll 1
    for (int i = 0; i < ITERATIONS; i++) {
        int64_t first = ((int64_t)blockIdx.x * ITERATIONS + i) * STEP;
        int64_t at = first + (int64_t)threadIdx.x * N;
        if constexpr (sizeof(Moment) == 1) {
            int64_t block = ((int64_t)blockIdx.x * ITERATIONS + i) * WARPS + threadIdx.x / WARP;
            if (block * MOMENT_BLOCK >= count) return; /* the same for all lanes */
            if (aligned) update_block<true, N>(&arrays, block, count, &scalars, tables);
            else update_block<false, N>(&arrays, block, count, &scalars, tables);
        } else if (aligned && first + STEP <= count)
            update_chunk<true, N>(&arrays, at, count - at, &scalars);
        else update_chunk<false, N>(&arrays, at, count - at, &scalars);
    }
}

template <typename Gradient, typename Master, typename Copy, typename Moment>
static void launch(struct backend *be, const struct adamw_args *a) {
    constexpr int N = values_of_a_chunk<Gradient, Master, Moment>();
    Copy *copy = a->copy ? (Copy *)a->copy->data : NULL;
    struct arrays<Gradient, Master, Copy, Moment> arrays = {
        (Master *)a->master->data, (uint16_t *)a->remainder, (Moment *)a->moment1->data,
            (Moment *)a->moment2->data, copy, (const Gradient *)a->gradients->data,
            (uint32_t)a->first, a->scales
    };
    struct rates rates = {a->beta1, a->beta2, a->epsilon, a->weight_decay, a->lr_factor};
    struct scalars given = {};
    given.beta1_rest = (float)(1.0 - a->beta1);
    given.beta2 = (float)a->beta2;
    given.beta2_rest = (float)(1.0 - a->beta2);
    int64_t count = tensor_count(a->master);
    bool aligned = aligned_to(arrays.master, N * sizeof(Master)) &&
                   aligned_to(arrays.remainder, N * sizeof(uint16_t)) &&
                   aligned_to(arrays.moment1, N * sizeof(Moment)) &&
                   aligned_to(arrays.moment2, N * sizeof(Moment)) &&
                   aligned_to(arrays.gradients, N * sizeof(Gradient)) &&
                   aligned_to(copy, N * sizeof(Copy));
    constexpr int64_t STEP =
        sizeof(Moment) == 1 ? (int64_t)THREADS / WARP * MOMENT_BLOCK : (int64_t)THREADS * N;
    LAUNCH((adamw_kernel<Gradient, Master, Copy, Moment>),
           (unsigned)blocks_of(count, STEP * ITERATIONS), THREADS, 0, cuda_state(be)->compute,
           arrays, count, aligned, a->state, a->inputs, given, rates);
}

template <typename Gradient, typename Moment>
static void choose(struct backend *be, const struct adamw_args *a) {
    bool half_copy = a->copy && a->copy->dtype == DTYPE_F16;
    if (a->remainder) launch<Gradient, struct upper_bits, struct bf16_copy, Moment>(be, a);
    else if (half_copy) launch<Gradient, float, __half, Moment>(be, a);
    else launch<Gradient, float, struct bf16_copy, Moment>(be, a);
}

void cuda_adamw(struct backend *be, const struct adamw_args *args) {
    enum dtype moments = args->moment1->dtype;
    adamw_check(args);
    if (tensor_count(args->master) == 0) return;
    STORAGE_SWITCH(args->gradients->dtype, Gradient, {
        if (moments == DTYPE_DYNAMIC8) choose<Gradient, struct coded>(be, args);
        else if (moments == DTYPE_BF16) choose<Gradient, __nv_bfloat16>(be, args);
        else choose<Gradient, float>(be, args);
    });
    cuda_launched(be, "adamw");
}
