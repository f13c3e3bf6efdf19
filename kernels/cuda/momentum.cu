/* Rules with at most one moment, in one pass over memory, and the two halves of a step that changes
 * the direction of whole matrices in between. Scalars depend on values in device memory, as in
 * adamw.cu. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/moments.h"
#include "kernels/cuda/rounding.h"

enum { THREADS = 256, ITERATIONS = 4 };

struct scalars {
    float beta1, beta1_rest; /* beta1, and 1 - beta1 */
    float beta2, beta2_rest;
    float decay;         /* weight_decay with SGD, else 0 */
    float keep, lr;      /* from here on filled in on the device: 1 - lr * weight_decay */
    float unscale, clip; /* 1 / loss_scale */
    struct rounding_key key;
};

/* Arguments of an update that scalars depend on. */
struct rates {
    double weight_decay, lr_factor;
    bool coupled; /* the decay is part of the gradient */
};

static __device__ __forceinline__ void finish_scalars(struct scalars *s,
                                                      const struct step_state *state,
                                                      const struct step_inputs *inputs,
                                                      const struct rates *rates) {
    double lr = inputs->lr * rates->lr_factor;
    double decay = __dmul_rn(lr, rates->weight_decay); /* not part of a multiply-add */
    s->keep = rates->coupled ? 1.0f : (float)(1.0 - decay);
    s->lr = (float)lr;
    s->key = inputs->key;
    s->unscale = 1.0f / state->loss_scale; /* rounded from fp64 as in gradient_norm.cu */
    s->clip = state->clip_factor;
}

/* One element: sets the moment, returns the direction. */
template <enum momentum_rule RULE>
static __device__ __forceinline__ float step(const struct scalars *s, float g, float w, float *m,
                                             bool nesterov) {
    float before = *m;
    if (RULE == MOMENTUM_SGD) {
        g += s->decay * w;
        *m = s->beta1 * before + g;
        return nesterov ? g + s->beta1 * *m : *m;
    }
    if (RULE == MOMENTUM_LION) {
        float d = s->beta1 * before + s->beta1_rest * g;
        *m = s->beta2 * before + s->beta2_rest * g;
        return (float)((d > 0) - (d < 0));
    }
    *m = before + s->beta1_rest * (g - before);
    return nesterov ? g + s->beta1 * (*m - g) : *m;
}

/* Master is float or struct upper_bits. */
template <typename Gradient, typename Master, typename Copy, typename Moment> struct arrays {
    Master *master;
    uint16_t *remainder; /* lower halves of split master weights */
    Copy *copy;          /* 16-bit copy, or NULL */
    Moment *moment;
    const Gradient *gradients;
    uint32_t first;
    struct moment_scales scales; /* of a moment in 8 bits */
};

template <bool WHOLE, int N>
static __device__ __forceinline__ void store_moment(const float *values, float *moment,
                                                    int64_t left, struct rounding_key, uint32_t) {
    store_flat<WHOLE, N>(moment, values, left);
}

template <bool WHOLE, int N>
static __device__ __forceinline__ void store_moment(const float *values, __nv_bfloat16 *moment,
                                                    int64_t left, struct rounding_key key,
                                                    uint32_t index) {
    uint32_t bits[N];
    for (int i = 0; i < N; i++) {
        uint32_t random = rounding_bits(key, index + (uint32_t)i);
        bits[i] = bf16_stochastic(__float_as_uint(values[i]), random & 0xffff);
    }
    store_bits<WHOLE, N>((uint16_t *)moment, bits, left);
}

/* One chunk of SGD or LION at `at`, with its moment in registers. */
template <bool WHOLE, int N, enum momentum_rule RULE, typename Arrays>
static __device__ __forceinline__ void update_weights(const Arrays *a, int64_t at, int64_t left,
                                                      const struct scalars *s, bool nesterov,
                                                      float *moment) {
    float gradient[N], master[N];
    load_flat<WHOLE, N>(gradient, a->gradients + at, left);
    load_masters<WHOLE, N>(master, a->master, a->remainder, at, left);
    for (int i = 0; i < N; i++) {
        float g = gradient[i] * s->unscale * s->clip;
        float d = step<RULE>(s, g, master[i], &moment[i], nesterov);
        master[i] = s->keep * master[i] - s->lr * d;
    }
    store_masters<WHOLE, N>(master, a->master, a->remainder, at, left);
    if (a->copy) store_flat<WHOLE, N>(a->copy + at, master, left);
}

/* One chunk of APPLY; the gradients are the direction. */
template <bool WHOLE, int N, typename Arrays>
static __device__ __forceinline__ void apply_chunk(const Arrays *a, int64_t at, int64_t left,
                                                   const struct scalars *s) {
    float direction[N], master[N];
    load_flat<WHOLE, N>(direction, a->gradients + at, left);
    load_masters<WHOLE, N>(master, a->master, a->remainder, at, left);
    for (int i = 0; i < N; i++) master[i] = s->keep * master[i] - s->lr * direction[i];
    store_masters<WHOLE, N>(master, a->master, a->remainder, at, left);
    if (a->copy) store_flat<WHOLE, N>(a->copy + at, master, left);
}

/* One chunk of DIRECTION, with its moment in registers; the direction is in place of the copy. */
template <bool WHOLE, int N, typename Arrays>
static __device__ __forceinline__ void find_direction(const Arrays *a, int64_t at, int64_t left,
                                                      const struct scalars *s, bool nesterov,
                                                      float *moment) {
    float gradient[N], direction[N];
    load_flat<WHOLE, N>(gradient, a->gradients + at, left);
    for (int i = 0; i < N; i++)
        direction[i] = step<MOMENTUM_DIRECTION>(s, gradient[i] * s->unscale * s->clip, 0,
                                                &moment[i], nesterov);
    store_flat<WHOLE, N>(a->copy + at, direction, left);
}

/* One chunk of a rule with a moment, which is in registers. */
template <bool WHOLE, int N, enum momentum_rule RULE, typename Arrays>
static __device__ __forceinline__ void rule_chunk(const Arrays *a, int64_t at, int64_t left,
                                                  const struct scalars *s, bool nesterov,
                                                  float *moment) {
    if constexpr (RULE == MOMENTUM_DIRECTION)
        find_direction<WHOLE, N>(a, at, left, s, nesterov, moment);
    else update_weights<WHOLE, N, RULE>(a, at, left, s, nesterov, moment);
}

/* The same at `at`. */
template <bool WHOLE, int N, enum momentum_rule RULE, typename Arrays>
static __device__ __forceinline__ void update_chunk(const Arrays *a, int64_t at, int64_t left,
                                                    const struct scalars *s, bool nesterov) {
    float moment[N];
    load_flat<WHOLE, N>(moment, a->moment + at, left);
    rule_chunk<WHOLE, N, RULE>(a, at, left, s, nesterov, moment);
    store_moment<WHOLE, N>(moment, a->moment + at, left, s->key, a->first + (uint32_t)at);
}

/* A block of moments in 8 bits. All lanes of a warp call it. */
template <bool WHOLE, int N, enum momentum_rule RULE, typename Arrays>
static __device__ __forceinline__ void update_block(const Arrays *a, int64_t block, int64_t count,
                                                    const struct scalars *s, bool nesterov,
                                                    const struct moment_tables *tables) {
    constexpr int CHUNKS = chunks_of_a_block<N>();
    const int64_t first = block * MOMENT_BLOCK + (int64_t)(threadIdx.x % WARP) * N;
    float values[CHUNKS * N];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int64_t at = first + (int64_t)c * WARP * N;
        load_codes<N>(&values[c * N], a->moment + at, a->scales.of[0][block], 1, tables);
        rule_chunk<WHOLE, N, RULE>(a, at, count - at, s, nesterov, &values[c * N]);
    }
    const float scale = block_scale<CHUNKS * N>(values);
    if (threadIdx.x % WARP == 0) a->scales.of[0][block] = scale;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int64_t at = first + (int64_t)c * WARP * N;
        const struct code_rounding rounding = {tables, a->scales.stochastic, s->key,
                                               a->first + (uint32_t)at};
        store_codes<N>(a->moment + at, &values[c * N], 1 / scale, 1, &rounding);
    }
}

/* DIRECTION has no master weights, and stores the direction in place of the copy. */
template <enum momentum_rule RULE, typename Gradient, typename Master, typename Copy,
          typename Moment>
static constexpr __host__ __device__ int values_of_a_chunk() {
    return chunk_values(sizeof(Gradient),
                        RULE == MOMENTUM_DIRECTION ? sizeof(Copy) : sizeof(Master),
                        sizeof(Moment) == 1 ? 2 : sizeof(Moment));
}

template <enum momentum_rule RULE, typename Gradient, typename Master, typename Copy,
          typename Moment>
static __global__ void __launch_bounds__(THREADS)
    momentum_kernel(struct arrays<Gradient, Master, Copy, Moment> arrays, int64_t count,
                    bool aligned, const struct step_state *__restrict__ state,
                    const struct step_inputs *__restrict__ inputs, struct scalars given,
                    struct rates rates, bool nesterov) {
    constexpr int N = values_of_a_chunk<RULE, Gradient, Master, Copy, Moment>();
    constexpr int STEP = THREADS * N;
    __shared__ struct scalars shared;
    const struct moment_tables *tables = NULL;
    if (state->found_inf) return; /* the same for all threads of all blocks */
    if constexpr (sizeof(Moment) == 1) tables = moment_tables_make();
    if (threadIdx.x == 0) {
        finish_scalars(&given, state, inputs, &rates);
        shared = given;
    }
    __syncthreads();
    struct scalars s = shared;
#pragma unroll 1
    for (int i = 0; i < ITERATIONS; i++) {
        int64_t first = ((int64_t)blockIdx.x * ITERATIONS + i) * STEP;
        int64_t at = first + (int64_t)threadIdx.x * N, left = count - at;
        bool whole = aligned && first + STEP <= count;
        if constexpr (sizeof(Moment) == 1) { /* a warp has a block, in as many chunks as it takes */
            constexpr int WARPS = THREADS / WARP;
            int64_t block = ((int64_t)blockIdx.x * ITERATIONS + i) * WARPS + threadIdx.x / WARP;
            if (block * MOMENT_BLOCK >= count) return; /* the same for all lanes */
            if (aligned) update_block<true, N, RULE>(&arrays, block, count, &s, nesterov, tables);
            else update_block<false, N, RULE>(&arrays, block, count, &s, nesterov, tables);
        } else if constexpr (RULE == MOMENTUM_APPLY) {
            if (whole) apply_chunk<true, N>(&arrays, at, left, &s);
            else apply_chunk<false, N>(&arrays, at, left, &s);
        } else {
            if (whole) update_chunk<true, N, RULE>(&arrays, at, left, &s, nesterov);
            else update_chunk<false, N, RULE>(&arrays, at, left, &s, nesterov);
        }
    }
}

/* A rule without an array ignores its type. */
template <enum momentum_rule RULE, typename Gradient, typename Master, typename Copy,
          typename Moment>
static void launch(struct backend *be, const struct momentum_args *a) {
    constexpr int N = values_of_a_chunk<RULE, Gradient, Master, Copy, Moment>();
    const struct tensor *source = RULE == MOMENTUM_APPLY ? a->direction : a->gradients;
    const struct tensor *copy = RULE == MOMENTUM_DIRECTION ? a->direction : a->copy;
    struct arrays<Gradient, Master, Copy, Moment> arrays = {};
    if (a->master) arrays.master = (Master *)a->master->data;
    if (copy) arrays.copy = (Copy *)copy->data;
    if (a->moment) arrays.moment = (Moment *)a->moment->data;
    arrays.remainder = (uint16_t *)a->remainder;
    arrays.gradients = (const Gradient *)source->data;
    arrays.first = (uint32_t)a->first;
    arrays.scales = a->scales;
    struct rates rates = {a->weight_decay, a->lr_factor, RULE == MOMENTUM_SGD};
    struct scalars given = {};
    given.beta1 = (float)a->beta1, given.beta1_rest = (float)(1 - a->beta1);
    given.beta2 = (float)a->beta2, given.beta2_rest = (float)(1 - a->beta2);
    given.decay = RULE == MOMENTUM_SGD ? (float)a->weight_decay : 0;
    int64_t count = momentum_count(a);
    bool aligned = aligned_to(arrays.master, N * sizeof(Master)) &&
                   aligned_to(arrays.remainder, N * sizeof(uint16_t)) &&
                   aligned_to(arrays.moment, N * sizeof(Moment)) &&
                   aligned_to(arrays.gradients, N * sizeof(Gradient)) &&
                   aligned_to(arrays.copy, N * sizeof(Copy));
    constexpr int64_t STEP =
        sizeof(Moment) == 1 ? (int64_t)THREADS / WARP * MOMENT_BLOCK : (int64_t)THREADS * N;
    LAUNCH((momentum_kernel<RULE, Gradient, Master, Copy, Moment>),
           (unsigned)blocks_of(count, STEP * ITERATIONS), THREADS, 0, cuda_state(be)->compute,
           arrays, count, aligned, a->state, a->inputs, given, rates, a->nesterov);
}

/* Chooses the form of the master weights. */
template <enum momentum_rule RULE, typename Gradient, typename Moment>
static void choose(struct backend *be, const struct momentum_args *a) {
    bool half_copy = a->copy && a->copy->dtype == DTYPE_F16;
    if (a->remainder) launch<RULE, Gradient, struct upper_bits, struct bf16_copy, Moment>(be, a);
    else if (half_copy) launch<RULE, Gradient, float, __half, Moment>(be, a);
    else launch<RULE, Gradient, float, struct bf16_copy, Moment>(be, a);
}

template <typename Gradient, typename Moment>
static void choose_rule(struct backend *be, const struct momentum_args *a) {
    if (a->rule == MOMENTUM_SGD) choose<MOMENTUM_SGD, Gradient, Moment>(be, a);
    else if (a->rule == MOMENTUM_LION) choose<MOMENTUM_LION, Gradient, Moment>(be, a);
    else
        STORAGE_SWITCH(
            a->direction->dtype, Direction,
            (launch<MOMENTUM_DIRECTION, Gradient, struct upper_bits, Direction, Moment>(be, a)));
}

void cuda_momentum(struct backend *be, const struct momentum_args *args) {
    momentum_check(args);
    if (momentum_count(args) == 0) return;
    if (args->rule == MOMENTUM_APPLY)
        STORAGE_SWITCH(args->direction->dtype, Direction,
                       (choose<MOMENTUM_APPLY, Direction, __nv_bfloat16>(be, args)));
    else
        STORAGE_SWITCH(args->gradients->dtype, Gradient, {
            if (args->moment->dtype == DTYPE_DYNAMIC8)
                choose_rule<Gradient, struct coded>(be, args);
            else if (args->moment->dtype == DTYPE_BF16)
                choose_rule<Gradient, __nv_bfloat16>(be, args);
            else choose_rule<Gradient, float>(be, args);
        });
    cuda_launched(be, "momentum");
}
