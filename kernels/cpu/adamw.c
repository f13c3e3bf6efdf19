#include <assert.h>
#include <math.h>

#include "kernels/cpu/cpu.h"

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

static void update(const struct adamw_args *a, const struct scalars *s, int64_t first, int64_t n) {
    float buffer[CPU_BLOCK];
    const struct tensor *gradients = a->gradients;
    const float *gradient = dtype_widen(buffer, gradients->data, gradients->dtype, first, n);
    float *restrict master = (float *)a->master->data + first;
    float *restrict moment1 = (float *)a->moment1->data + first;
    float *restrict moment2 = (float *)a->moment2->data + first;
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
    if (a->lower) dtype_store(a->lower->data, a->lower->dtype, first, master, n);
}

void cpu_adamw(struct backend *be, const struct adamw_args *args) {
    (void)be;
    if (args->state->found_inf) return;
    int64_t count = tensor_count(args->master);
    assert(args->master->dtype == DTYPE_F32 && tensor_count(args->gradients) == count);
    struct scalars scalars = step_scalars(args);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_of(count, CPU_BLOCK); block++) {
        int64_t first = block * CPU_BLOCK;
        update(args, &scalars, first, block_length(first, count, CPU_BLOCK));
    }
}
