#include <assert.h>
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

/* The scalars of one step, as PyTorch computes them: in fp64, then rounded once. */
struct scalars {
    float keep;              /* 1 - lr * weight_decay */
    float beta1_rest;        /* 1 - beta1 */
    float beta2, beta2_rest; /* and 1 - beta2 */
    float step_size;         /* lr / (1 - beta1^t) */
    float root2;             /* sqrt(1 - beta2^t) */
    float epsilon;
    float unscale; /* 1 / loss_scale */
    float clip;
};

static struct scalars step_scalars(const struct adamw_args *a) {
    double t = a->state->updates + 1.0;
    return (struct scalars){
        .keep = (float)(1.0 - a->lr * a->weight_decay),
        .beta1_rest = (float)(1.0 - a->beta1),
        .beta2 = (float)a->beta2,
        .beta2_rest = (float)(1.0 - a->beta2),
        .step_size = (float)(a->lr / (1.0 - pow(a->beta1, t))),
        .root2 = (float)sqrt(1.0 - pow(a->beta2, t)),
        .epsilon = (float)a->epsilon,
        .unscale = (float)(1.0 / (double)a->state->loss_scale),
        .clip = a->state->clip_factor,
    };
}

/* A block of the arrays in fp32: in place where they are, else in the buffers. */
struct block {
    float *master, *moment1, *moment2;
    float buffers[3][CPU_BLOCK];
};

static float *widen(float *buffer, const struct tensor *tensor, int64_t first, int64_t n) {
    if (tensor->dtype == DTYPE_F32) return (float *)tensor->data + first;
    dtype_widen(buffer, tensor->data, tensor->dtype, (size_t)first, (size_t)n);
    return buffer;
}

static void load(struct block *block, const struct adamw_args *a, int64_t first, int64_t n) {
    block->moment1 = widen(block->buffers[0], a->moment1, first, n);
    block->moment2 = widen(block->buffers[1], a->moment2, first, n);
    if (!a->remainder) {
        block->master = (float *)a->master->data + first;
        return;
    }
    block->master = block->buffers[2];
    join_masters(block->master, (const uint16_t *)a->master->data + first, a->remainder + first,
                 (size_t)n);
}

/* One draw of 32 bits rounds both moments of an element. */
static void store_moments(const struct block *block, const struct adamw_args *a, int64_t first,
                          int64_t n) {
    uint16_t *restrict moment1 = (uint16_t *)a->moment1->data + first;
    uint16_t *restrict moment2 = (uint16_t *)a->moment2->data + first;
    const float *restrict values1 = block->moment1, *restrict values2 = block->moment2;
    const struct rounding_key key = a->key;
    uint32_t at = (uint32_t)(a->first + first);
#pragma omp simd
    for (int32_t i = 0; i < (int32_t)n; i++) {
        uint32_t random = rounding_bits(key, at + (uint32_t)i);
        moment1[i] = (uint16_t)bf16_stochastic(f32_bits(values1[i]), random & 0xffff);
        moment2[i] = (uint16_t)bf16_stochastic(f32_bits(values2[i]), random >> 16);
    }
}

static void store(const struct block *block, const struct adamw_args *a, int64_t first, int64_t n) {
    if (a->moment1->dtype == DTYPE_BF16) store_moments(block, a, first, n);
    if (a->remainder)
        split_masters((uint16_t *)a->master->data + first, a->remainder + first, block->master,
                      (size_t)n);
    if (a->copy)
        copy_masters(a->copy->data, a->copy->dtype, (size_t)first, block->master, (size_t)n);
}

static void update(const struct adamw_args *a, const struct scalars *s, int64_t first, int64_t n) {
    float buffer[CPU_BLOCK];
    struct block block;
    const struct tensor *gradients = a->gradients;
    const float *gradient = dtype_widen(buffer, gradients->data, gradients->dtype, first, n);
    load(&block, a, first, n);
    float *restrict master = block.master, *restrict moment1 = block.moment1;
    float *restrict moment2 = block.moment2;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = gradient[i] * s->unscale * s->clip;
        float m = moment1[i] + s->beta1_rest * (g - moment1[i]);
        float v = s->beta2 * moment2[i] + s->beta2_rest * g * g;
        float denominator = sqrtf(v) / s->root2 + s->epsilon;
        master[i] = s->keep * master[i] - s->step_size * m / denominator;
        moment1[i] = m;
        moment2[i] = v;
    }
    store(&block, a, first, n);
}

/* What the forms of the arrays have to agree on. */
static void check_forms(const struct adamw_args *a) {
    int64_t count = tensor_count(a->master);
    assert(a->master->dtype == (a->remainder ? DTYPE_BF16 : DTYPE_F32));
    assert(a->moment1->dtype == a->moment2->dtype && a->moment1->dtype != DTYPE_F16);
    assert(!(a->copy && a->remainder) && tensor_count(a->gradients) == count);
    (void)a, (void)count;
}

void cpu_adamw(struct backend *be, const struct adamw_args *args) {
    (void)be;
    if (args->state->found_inf) return;
    int64_t count = tensor_count(args->master);
    check_forms(args);
    struct scalars scalars = step_scalars(args);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_of(count, CPU_BLOCK); block++) {
        int64_t first = block * CPU_BLOCK;
        update(args, &scalars, first, block_length(first, count, CPU_BLOCK));
    }
}
