/* AdamW in one pass: reads gradient, weight and both moments, writes the last three and the rounded
 * weight; 30 bytes for each parameter with fp32 gradients and a 16-bit copy.
 *
 * Whether to do it at all, the scale, the clipping and the number of the step stand in device
 * memory. So each block works out for itself what depends on them, in fp64, as PyTorch does. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/flat.h"

/* A thread has one chunk of four arrays in flight, which is as many bytes as four chunks of one. */
enum { THREADS = 256, VALUES = 4, ITERATIONS = 4, STEP = THREADS * VALUES };

struct scalars {
    float keep;              /* 1 - lr * weight_decay */
    float beta1_rest;        /* 1 - beta1 */
    float beta2, beta2_rest; /* and 1 - beta2 */
    float epsilon;
    float step_size; /* lr / (1 - beta1^t), from here on of the device */
    float root2;     /* sqrt(1 - beta2^t) */
    float unscale;   /* 1 / loss_scale */
    float clip;
};

/* For a whole n >= 0, by squaring: far cheaper than pow, which has to take logarithms. An error
 * grows to n 2^-53 of a power that falls faster. */
static __device__ __forceinline__ double power(double base, uint32_t n) {
    double result = 1;
    for (; n; n >>= 1) {
        if (n & 1) result *= base;
        base *= base;
    }
    return result;
}

static __device__ __forceinline__ void finish_scalars(struct scalars *s,
                                                      const struct step_state *state, double lr,
                                                      double beta1, double beta2) {
    uint32_t t = (uint32_t)state->updates + 1;
    s->step_size = (float)(lr / (1.0 - power(beta1, t)));
    s->root2 = (float)sqrt(1.0 - power(beta2, t));
    s->unscale = 1.0f / state->loss_scale; /* as rounded from fp64: see gradient_norm.cu */
    s->clip = state->clip_factor;
}

static __device__ __forceinline__ void update(float *master, float *moment1, float *moment2,
                                              float gradient, const struct scalars *s) {
    float g = gradient * s->unscale * s->clip;
    float m = *moment1 + s->beta1_rest * (g - *moment1);
    float v = s->beta2 * *moment2 + s->beta2_rest * g * g;
    float denominator = sqrtf(v) / s->root2 + s->epsilon;
    *master = s->keep * *master - s->step_size * m / denominator;
    *moment1 = m;
    *moment2 = v;
}

template <typename Gradient, typename Lower> struct arrays {
    float *master, *moment1, *moment2;
    Lower *lower; /* NULL: none */
    const Gradient *gradients;
};

/* One chunk at `at`. */
template <bool WHOLE, typename Gradient, typename Lower>
static __device__ __forceinline__ void update_chunk(const struct arrays<Gradient, Lower> *a,
                                                    int64_t at, int64_t left,
                                                    const struct scalars *s) {
    float gradient[VALUES], master[VALUES], moment1[VALUES], moment2[VALUES];
    load_flat<WHOLE, VALUES>(gradient, a->gradients + at, left);
    load_flat<WHOLE, VALUES>(master, a->master + at, left);
    load_flat<WHOLE, VALUES>(moment1, a->moment1 + at, left);
    load_flat<WHOLE, VALUES>(moment2, a->moment2 + at, left);
    for (int i = 0; i < VALUES; i++) update(&master[i], &moment1[i], &moment2[i], gradient[i], s);
    store_flat<WHOLE, VALUES>(a->master + at, master, left);
    store_flat<WHOLE, VALUES>(a->moment1 + at, moment1, left);
    store_flat<WHOLE, VALUES>(a->moment2 + at, moment2, left);
    if (a->lower) store_flat<WHOLE, VALUES>(a->lower + at, master, left);
}

template <typename Gradient, typename Lower>
static __global__ void __launch_bounds__(THREADS)
    adamw_kernel(struct arrays<Gradient, Lower> arrays, int64_t count, bool aligned,
                 const struct step_state *__restrict__ state, struct scalars given, double lr,
                 double beta1, double beta2) {
    __shared__ struct scalars shared;
    if (state->found_inf) return; /* so do all threads of all blocks */
    if (threadIdx.x == 0) {
        finish_scalars(&given, state, lr, beta1, beta2);
        shared = given;
    }
    __syncthreads();
    struct scalars scalars = shared;
#pragma unroll 1
    for (int i = 0; i < ITERATIONS; i++) {
        int64_t first = ((int64_t)blockIdx.x * ITERATIONS + i) * STEP;
        int64_t at = first + (int64_t)threadIdx.x * VALUES;
        if (aligned && first + STEP <= count) update_chunk<true>(&arrays, at, count - at, &scalars);
        else update_chunk<false>(&arrays, at, count - at, &scalars);
    }
}

template <typename Gradient, typename Lower>
static void launch(struct backend *be, const struct adamw_args *a) {
    Lower *lower = a->lower ? (Lower *)a->lower->data : NULL;
    struct arrays<Gradient, Lower> arrays = {
        (float *)a->master->data, (float *)a->moment1->data, (float *)a->moment2->data, lower,
            (const Gradient *)a->gradients->data
    };
    struct scalars given = {};
    given.keep = (float)(1.0 - a->lr * a->weight_decay);
    given.beta1_rest = (float)(1.0 - a->beta1);
    given.beta2 = (float)a->beta2;
    given.beta2_rest = (float)(1.0 - a->beta2);
    given.epsilon = (float)a->epsilon;
    int64_t count = tensor_count(a->master);
    bool aligned = aligned_to(arrays.master, VALUES * sizeof(float)) &&
                   aligned_to(arrays.moment1, VALUES * sizeof(float)) &&
                   aligned_to(arrays.moment2, VALUES * sizeof(float)) &&
                   aligned_to(arrays.gradients, VALUES * sizeof(Gradient)) &&
                   aligned_to(lower, VALUES * sizeof(Lower));
    LAUNCH((adamw_kernel<Gradient, Lower>), (unsigned)blocks_of(count, STEP * ITERATIONS), THREADS,
           0, cuda_state(be)->compute, arrays, count, aligned, a->state, given, a->lr, a->beta1,
           a->beta2);
}

void cuda_adamw(struct backend *be, const struct adamw_args *args) {
    int64_t count = tensor_count(args->master);
    assert(args->master->dtype == DTYPE_F32 && args->moment1->dtype == DTYPE_F32 &&
           args->moment2->dtype == DTYPE_F32);
    assert(tensor_count(args->gradients) == count);
    if (count == 0) return;
    enum dtype lower = args->lower ? args->lower->dtype : DTYPE_F32;
    STORAGE_SWITCH(args->gradients->dtype, Gradient,
                   STORAGE_SWITCH(lower, Lower, (launch<Gradient, Lower>(be, args))));
    cuda_launched(be, "adamw");
}
