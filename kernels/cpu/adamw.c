#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/moment_blocks.h"
#include "kernels/cpu/vector.h"

/* The scalars of one step, computed in fp64, then rounded once. The correction of the second
 * moment, root2 = sqrt(1 - beta2^t), is moved out of the fraction:
 *
 *     lr / (1 - beta1^t) * m / (sqrt(v) / root2 + epsilon)
 *         = step_size * m / (sqrt(v) + epsilon * root2)
 *
 * This takes one division instead of two; where memory is fast, divisions and the root are the cost
 * of an update. */
struct scalars {
    float keep;              /* 1 - lr * weight_decay */
    float beta1_rest;        /* 1 - beta1 */
    float beta2, beta2_rest; /* beta2, and 1 - beta2 */
    float step_size;         /* lr * root2 / (1 - beta1^t) */
    float epsilon;           /* epsilon * root2 */
    float unscale;           /* 1 / loss_scale */
    float clip;
};

static struct scalars step_scalars(const struct adamw_args *a) {
    double t = a->state->updates + 1.0, root2 = sqrt(1.0 - pow(a->beta2, t));
    double lr = a->inputs->lr * a->lr_factor;
    return (struct scalars){
        .keep = (float)(1.0 - lr * a->weight_decay),
        .beta1_rest = (float)(1.0 - a->beta1),
        .beta2 = (float)a->beta2,
        .beta2_rest = (float)(1.0 - a->beta2),
        .step_size = (float)(lr * root2 / (1.0 - pow(a->beta1, t))),
        .epsilon = (float)(a->epsilon * root2),
        .unscale = (float)(1.0 / (double)a->state->loss_scale),
        .clip = a->state->clip_factor,
    };
}

/* Updates the elements of one block, with moments in `coded` if that is given. The flags are
 * constants after inlining, so that each combination has a loop of its own in which loads,
 * divisions and stores overlap. */
static inline __attribute__((always_inline)) void
update_block(const struct adamw_args *a, const struct scalars *s, int64_t first, int64_t n,
             float *coded[2], const bool split, const bool bf16_moments,
             const bool bf16_gradients) {
    float buffer[CPU_BLOCK];
    const struct tensor *gradients = a->gradients;
    const float *gradient = buffer;
    const uint16_t *gradient_bf16 = (const uint16_t *)gradients->data + first;
    if (!bf16_gradients)
        gradient = dtype_widen(buffer, gradients->data, gradients->dtype, first, n);
    float *restrict master = (float *)a->master->data + first;
    uint16_t *restrict upper = (uint16_t *)a->master->data + first;
    int16_t *restrict remainder = a->remainder + first;
    float *restrict moment1 = coded ? coded[0] : (float *)a->moment1->data + first;
    float *restrict moment2 = coded ? coded[1] : (float *)a->moment2->data + first;
    uint16_t *restrict moment1_bf16 = (uint16_t *)a->moment1->data + first;
    uint16_t *restrict moment2_bf16 = (uint16_t *)a->moment2->data + first;
    const struct rounding_key key = a->inputs->key;
    const uint32_t index = (uint32_t)(a->first + first);
#pragma omp simd
    for (int32_t i = 0; i < (int32_t)n; i++) {
        float g = bf16_gradients ? f32_from_bf16(gradient_bf16[i]) : gradient[i];
        g = g * s->unscale * s->clip;
        float m = bf16_moments ? f32_from_bf16(moment1_bf16[i]) : moment1[i];
        float v = bf16_moments ? f32_from_bf16(moment2_bf16[i]) : moment2[i];
        float w = split ? f32_of_bits(joined_bits(upper[i], remainder[i])) : master[i];
        m = m + s->beta1_rest * (g - m);
        v = s->beta2 * v + s->beta2_rest * g * g;
        w = s->keep * w - s->step_size * m / (sqrtf(v) + s->epsilon);
        if (bf16_moments) {
            uint32_t random = rounding_bits(key, index + (uint32_t)i);
            moment1_bf16[i] = (uint16_t)bf16_stochastic(f32_bits(m), random & 0xffff);
            moment2_bf16[i] = (uint16_t)bf16_stochastic(f32_bits(v), random >> 16);
        } else {
            moment1[i] = m;
            moment2[i] = v;
        }
        if (split) {
            upper[i] = (uint16_t)upper_half(f32_bits(w));
            remainder[i] = remainder_of(f32_bits(w));
        } else {
            master[i] = w;
        }
    }
}

static void update(const struct adamw_args *a, const struct scalars *s, int64_t first, int64_t n,
                   float *coded[2]) {
    bool split = a->remainder != NULL, bf16_gradients = a->gradients->dtype == DTYPE_BF16;
    bool bf16_moments = a->moment1->dtype == DTYPE_BF16;
    if (split && bf16_moments && bf16_gradients)
        update_block(a, s, first, n, NULL, true, true, true);
    else if (split && bf16_moments) update_block(a, s, first, n, NULL, true, true, false);
    else if (split) update_block(a, s, first, n, coded, true, false, false);
    else if (bf16_moments) update_block(a, s, first, n, NULL, false, true, false);
    else update_block(a, s, first, n, coded, false, false, false);
    if (a->copy)
        copy_masters(a->copy->data, a->copy->dtype, (size_t)first,
                     (const float *)a->master->data + first, (size_t)n);
}

/* The same with moments in 8 bits, between reading and writing their codes. */
static void update_coded(const struct adamw_args *a, const struct scalars *s,
                         const struct moment_blocks moments[2], int64_t first, int64_t n) {
    float values[2][CPU_BLOCK];
    for (int i = 0; i < 2; i++) moment_blocks_load(values[i], &moments[i], first, n);
    update(a, s, first, n, (float *[]){values[0], values[1]});
    for (int i = 0; i < 2; i++)
        moment_blocks_store(&moments[i], values[i], first, n, a->inputs->key,
                            (uint32_t)(a->first + first));
}

void cpu_adamw(struct backend *be, const struct adamw_args *args) {
    (void)be;
    if (args->state->found_inf) return;
    int64_t count = tensor_count(args->master);
    adamw_check(args);
    struct scalars scalars = step_scalars(args);
    const bool coded = args->scales.of[0] != NULL;
    struct moment_blocks moments[2];
    for (int i = 0; coded && i < 2; i++)
        moments[i] = (struct moment_blocks){(i ? args->moment2 : args->moment1)->data,
                                            args->scales.of[i], i, args->scales.stochastic};
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_of(count, CPU_BLOCK); block++) {
        int64_t first = block * CPU_BLOCK;
        const int64_t n = block_length(first, count, CPU_BLOCK);
        if (coded) update_coded(args, &scalars, moments, first, n);
        else update(args, &scalars, first, n, NULL);
    }
}
