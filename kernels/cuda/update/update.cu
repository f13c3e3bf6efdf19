/* The updates of optimizers, each in one pass: AdamW reads gradient, weight and both moments, and
 * writes the last three. With fp32 gradients and moments it moves 28 bytes for each parameter, 30
 * with a 16-bit copy of the weight; with split master weights and 16-bit gradients and moments 18.
 *
 * found_inf, the loss scale, the clip factor, the learning rate and the number of updates are in
 * device memory. Each block computes the scalars that depend on them, in fp64, as PyTorch does. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/update/moments.h"
#include "kernels/cuda/rounding.h"

/* A thread has one chunk of each of four arrays in flight, as many bytes as four chunks of one
 * array. */
enum { THREADS = 256, ITERATIONS = 4 };

struct scalars {
    float beta1, beta1_rest; /* beta1, and 1 - beta1 */
    float beta2, beta2_rest;
    float decay;   /* weight_decay, with SGD */
    float keep;    /* from here on filled in on the device: 1 - lr * weight_decay; with SGD 1 */
    float lr;      /* with ADAMW times root2 / (1 - beta1^t) */
    float epsilon; /* with ADAMW: epsilon * root2, where root2 = sqrt(1 - beta2^t); see
                      kernels/cpu/update.c */
    float unscale, clip; /* 1 / loss_scale */
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

template <enum update_kind KIND>
static __device__ __forceinline__ void
finish_scalars(struct scalars *s, const struct step_state *state, const struct step_inputs *inputs,
               const struct rates *rates) {
    double lr = inputs->lr * rates->lr_factor;
    double decay = __dmul_rn(lr, rates->weight_decay); /* not part of a multiply-add */
    s->keep = KIND == UPDATE_SGD ? 1.0f : (float)(1.0 - decay);
    s->lr = (float)lr;
    if (KIND == UPDATE_ADAMW) {
        uint32_t t = (uint32_t)state->updates + 1;
        double root2 = sqrt(1.0 - power(rates->beta2, t));
        s->lr = (float)(lr * root2 / (1.0 - power(rates->beta1, t)));
        s->epsilon = (float)(rates->epsilon * root2);
    }
    s->key = inputs->key;
    s->unscale = 1.0f / state->loss_scale; /* rounded from fp64 as in gradient_norm.cu */
    s->clip = state->clip_factor;
}

/* Sets the moments of one element; returns its weight, or with DIRECTION the direction. The file is
 * compiled without fused multiply-adds (cuda.mk); those of ADAMW, written out, save registers. */
template <enum update_kind KIND>
static __device__ __forceinline__ float step(const struct scalars *s, float g, float w, float *m,
                                             float *v, bool nesterov) {
    const float before = *m;
    float d = g;
    if constexpr (KIND == UPDATE_ADAMW) {
        *m = fmaf(s->beta1_rest, g - before, before);
        *v = fmaf(s->beta2_rest * g, g, s->beta2 * *v);
        return fmaf(s->keep, w, -(s->lr * *m / (sqrtf(*v) + s->epsilon)));
    } else if constexpr (KIND == UPDATE_SGD) {
        g += s->decay * w;
        *m = s->beta1 * before + g;
        d = nesterov ? g + s->beta1 * *m : *m;
    } else if constexpr (KIND == UPDATE_LION) {
        d = s->beta1 * before + s->beta1_rest * g;
        *m = s->beta2 * before + s->beta2_rest * g;
        d = (float)((d > 0) - (d < 0));
    } else if constexpr (KIND == UPDATE_DIRECTION) {
        *m = before + s->beta1_rest * (g - before);
        return nesterov ? g + s->beta1 * (*m - g) : *m;
    } else static_assert(KIND == UPDATE_APPLY, "a rule without its formula");
    return s->keep * w - s->lr * d;
}

/* Master is float or struct upper_bits. A rule without an array ignores its type. */
template <typename Gradient, typename Master, typename Copy, typename Moment> struct arrays {
    Master *master;
    uint16_t *remainder; /* lower halves of split master weights */
    Moment *moments[2];
    Copy *copy;                /* 16-bit copy, or NULL; with DIRECTION the direction */
    const Gradient *gradients; /* with APPLY the direction */
    uint32_t first;
    bool nesterov;
    struct moment_scales scales; /* of moments in 8 bits */
};

/* Updates one chunk of weights at `at`, and its moments in registers. */
template <bool WHOLE, int N, enum update_kind KIND, typename Arrays>
static __device__ __forceinline__ void update_values(const Arrays *a, int64_t at, int64_t left,
                                                     const struct scalars *s, float *moment1,
                                                     float *moment2) {
    constexpr bool WEIGHTS = KIND != UPDATE_DIRECTION;
    float gradient[N], weight[N] = {};
    load_flat<WHOLE, N>(gradient, a->gradients + at, left);
    if (WEIGHTS) load_masters<WHOLE, N>(weight, a->master, a->remainder, at, left);
    for (int i = 0; i < N; i++) {
        float g = KIND == UPDATE_APPLY ? gradient[i] : gradient[i] * s->unscale * s->clip;
        weight[i] = step<KIND>(s, g, weight[i], &moment1[i], &moment2[i], a->nesterov);
    }
    if (WEIGHTS) store_masters<WHOLE, N>(weight, a->master, a->remainder, at, left);
    if (!WEIGHTS || a->copy) store_flat<WHOLE, N>(a->copy + at, weight, left);
}

template <bool WHOLE, int N>
static __device__ __forceinline__ void store_moments(const float (*values)[N], int moments,
                                                     float *const *to, int64_t at, int64_t left,
                                                     struct rounding_key, uint32_t) {
    for (int j = 0; j < moments; j++) store_flat<WHOLE, N>(to[j] + at, values[j], left);
}

/* One draw of 32 bits rounds both moments of an element. */
template <bool WHOLE, int N>
static __device__ __forceinline__ void
store_moments(const float (*values)[N], int moments, __nv_bfloat16 *const *to, int64_t at,
              int64_t left, struct rounding_key key, uint32_t index) {
    uint32_t bits[2][N];
    for (int i = 0; i < N; i++) {
        uint32_t random = moments ? rounding_bits(key, index + (uint32_t)i) : 0;
        bits[0][i] = bf16_stochastic(__float_as_uint(values[0][i]), random & 0xffff);
        bits[1][i] = bf16_stochastic(__float_as_uint(values[1][i]), random >> 16);
    }
    for (int j = 0; j < moments; j++) store_bits<WHOLE, N>((uint16_t *)to[j] + at, bits[j], left);
}

/* One chunk at `at`. */
template <bool WHOLE, int N, enum update_kind KIND, int MOMENTS, typename Arrays>
static __device__ __forceinline__ void update_chunk(const Arrays *a, int64_t at, int64_t left,
                                                    const struct scalars *s) {
    float values[2][N] = {};
    for (int j = 0; j < MOMENTS; j++) load_flat<WHOLE, N>(values[j], a->moments[j] + at, left);
    update_values<WHOLE, N, KIND>(a, at, left, s, values[0], values[1]);
    store_moments<WHOLE, N>(values, MOMENTS, a->moments, at, left, s->key, a->first + (uint32_t)at);
}

/* A block of moments in 8 bits. All lanes of a warp call it. */
template <bool WHOLE, int N, enum update_kind KIND, int MOMENTS, typename Arrays>
static __device__ __forceinline__ void update_block(const Arrays *a, int64_t block, int64_t count,
                                                    const struct scalars *s,
                                                    const struct moment_tables *tables) {
    constexpr int CHUNKS = chunks_of_a_block<N>();
    const int64_t first = block * MOMENT_BLOCK + (int64_t)(threadIdx.x % WARP) * N;
    float values[2][CHUNKS * N] = {};
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int64_t at = first + (int64_t)c * WARP * N;
        for (int j = 0; j < MOMENTS; j++)
            load_codes<N>(&values[j][c * N], a->moments[j] + at, a->scales.of[j][block], j == 0,
                          tables);
        update_values<WHOLE, N, KIND>(a, at, count - at, s, &values[0][c * N], &values[1][c * N]);
    }
#pragma unroll
    for (int j = 0; j < MOMENTS; j++) {
        const float scale = block_scale<CHUNKS * N>(values[j]);
        if (threadIdx.x % WARP == 0) a->scales.of[j][block] = scale;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int64_t at = first + (int64_t)c * WARP * N;
            const struct code_rounding rounding = {tables, a->scales.stochastic, s->key,
                                                   a->first + (uint32_t)at};
            store_codes<N>(a->moments[j] + at, &values[j][c * N], 1 / scale, j == 0, &rounding);
        }
    }
}

/* Number of values of a chunk: a warp has a block of codes, in as many chunks as it takes. */
template <enum update_kind KIND, typename Gradient, typename Master, typename Copy, typename Moment>
static constexpr __host__ __device__ int values_of_a_chunk() {
    return chunk_values(sizeof(Gradient), KIND == UPDATE_DIRECTION ? sizeof(Copy) : sizeof(Master),
                        sizeof(Moment) == 1 ? 2 : sizeof(Moment));
}

template <enum update_kind KIND, int MOMENTS, typename Gradient, typename Master, typename Copy,
          typename Moment>
static __global__ void __launch_bounds__(THREADS)
    update_kernel(struct arrays<Gradient, Master, Copy, Moment> arrays, int64_t count, bool aligned,
                  const struct step_state *__restrict__ state,
                  const struct step_inputs *__restrict__ inputs, struct scalars given,
                  struct rates rates) {
    constexpr int N = values_of_a_chunk<KIND, Gradient, Master, Copy, Moment>();
    constexpr int STEP = THREADS * N, WARPS = THREADS / WARP;
    __shared__ struct scalars shared;
    const struct moment_tables *tables = NULL;
    if (state->found_inf) return; /* the same for all threads of all blocks */
    if constexpr (sizeof(Moment) == 1) tables = moment_tables_make();
    if (threadIdx.x == 0) {
        finish_scalars<KIND>(&given, state, inputs, &rates);
        shared = given;
    }
    __syncthreads();
    struct scalars s = shared;
#pragma unroll 1
    for (int i = 0; i < ITERATIONS; i++) {
        int64_t first = ((int64_t)blockIdx.x * ITERATIONS + i) * STEP;
        int64_t at = first + (int64_t)threadIdx.x * N, left = count - at;
        if constexpr (sizeof(Moment) == 1) {
            int64_t block = ((int64_t)blockIdx.x * ITERATIONS + i) * WARPS + threadIdx.x / WARP;
            if (block * MOMENT_BLOCK >= count) return; /* the same for all lanes */
            if (aligned) update_block<true, N, KIND, MOMENTS>(&arrays, block, count, &s, tables);
            else update_block<false, N, KIND, MOMENTS>(&arrays, block, count, &s, tables);
        } else if (aligned && first + STEP <= count)
            update_chunk<true, N, KIND, MOMENTS>(&arrays, at, left, &s);
        else update_chunk<false, N, KIND, MOMENTS>(&arrays, at, left, &s);
    }
}

template <typename T> static T *data_of(const struct tensor *tensor) {
    return tensor ? (T *)tensor->data : NULL;
}

template <enum update_kind KIND, int MOMENTS, typename Gradient, typename Master, typename Copy,
          typename Moment>
static void launch(struct backend *be, const struct update_args *a) {
    constexpr int N = values_of_a_chunk<KIND, Gradient, Master, Copy, Moment>();
    constexpr int64_t STEP =
        sizeof(Moment) == 1 ? (int64_t)THREADS / WARP * MOMENT_BLOCK : (int64_t)THREADS * N;
    const struct arrays<Gradient, Master, Copy, Moment> arrays = {
        data_of<Master>(a->master), (uint16_t *)a->remainder,
            {data_of<Moment>(a->moments[0]), data_of<Moment>(a->moments[1])},
            data_of<Copy>(KIND == UPDATE_DIRECTION ? a->direction : a->copy),
            data_of<const Gradient>(KIND == UPDATE_APPLY ? a->direction : a->gradients),
            (uint32_t)a->first, a->nesterov, a->scales
    };
    const struct rates rates = {a->beta1, a->beta2, a->epsilon, a->weight_decay, a->lr_factor};
    struct scalars given = {};
    given.beta1 = (float)a->beta1, given.beta1_rest = (float)(1.0 - a->beta1);
    given.beta2 = (float)a->beta2, given.beta2_rest = (float)(1.0 - a->beta2);
    given.decay = (float)a->weight_decay;
    const int64_t count = update_count(a);
    const bool aligned = aligned_to(arrays.master, N * sizeof(Master)) &&
                         aligned_to(arrays.remainder, N * sizeof(uint16_t)) &&
                         aligned_to(arrays.moments[0], N * sizeof(Moment)) &&
                         aligned_to(arrays.moments[1], N * sizeof(Moment)) &&
                         aligned_to(arrays.gradients, N * sizeof(Gradient)) &&
                         aligned_to(arrays.copy, N * sizeof(Copy));
    LAUNCH((update_kernel<KIND, MOMENTS, Gradient, Master, Copy, Moment>),
           (unsigned)blocks_of(count, STEP * ITERATIONS), THREADS, 0, cuda_state(be)->compute,
           arrays, count, aligned, a->state, a->inputs, given, rates);
}

/* Chooses the form of the master weights, or with DIRECTION the dtype of the direction. */
template <enum update_kind KIND, int MOMENTS, typename Gradient, typename Moment>
static void choose_masters(struct backend *be, const struct update_args *a) {
    const bool half_copy = a->copy && a->copy->dtype == DTYPE_F16;
    if constexpr (KIND == UPDATE_DIRECTION)
        STORAGE_SWITCH(
            a->direction->dtype, Direction,
            (launch<KIND, MOMENTS, Gradient, struct upper_bits, Direction, Moment>(be, a)));
    else if (a->remainder)
        launch<KIND, MOMENTS, Gradient, struct upper_bits, struct bf16_copy, Moment>(be, a);
    else if (half_copy) launch<KIND, MOMENTS, Gradient, float, __half, Moment>(be, a);
    else launch<KIND, MOMENTS, Gradient, float, struct bf16_copy, Moment>(be, a);
}

/* Chooses the dtypes of the source and of the moments. */
template <enum update_kind KIND, int MOMENTS>
static void choose(struct backend *be, const struct update_args *a) {
    const enum dtype moments = MOMENTS ? a->moments[0]->dtype : DTYPE_BF16;
    STORAGE_SWITCH((KIND == UPDATE_APPLY ? a->direction : a->gradients)->dtype, Source, {
        if (moments == DTYPE_BF16) choose_masters<KIND, MOMENTS, Source, __nv_bfloat16>(be, a);
        else if constexpr (MOMENTS > 0) {
            if (moments == DTYPE_F32) choose_masters<KIND, MOMENTS, Source, float>(be, a);
            else choose_masters<KIND, MOMENTS, Source, struct coded>(be, a);
        }
    });
}

void cuda_update(struct backend *be, const struct update_args *args) {
    update_check(args);
    if (update_count(args) == 0) return;
    switch (args->kind) {
#define X(kind, moments) \
    case UPDATE_##kind: choose<UPDATE_##kind, moments>(be, args); break;
        UPDATE_KINDS(X)
#undef X
    }
    cuda_launched(be, "update");
}
