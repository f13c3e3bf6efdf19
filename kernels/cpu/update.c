#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/moment_blocks.h"
#include "kernels/cpu/vector.h"

/* The scalars of one step, computed in fp64, then rounded once. The correction of AdamW's second
 * moment, root2 = sqrt(1 - beta2^t), is moved out of the fraction:
 *
 *     lr / (1 - beta1^t) * m / (sqrt(v) / root2 + epsilon)
 *         = lr * root2 / (1 - beta1^t) * m / (sqrt(v) + epsilon * root2)
 *
 * This takes one division instead of two; where memory is fast, divisions and the root are the cost
 * of an update. */
struct scalars {
    float beta1, beta1_rest; /* beta1, and 1 - beta1 */
    float beta2, beta2_rest;
    float keep;          /* 1 - lr * weight_decay; with SGD 1 */
    float decay;         /* weight_decay, with SGD */
    float lr;            /* with ADAMW times root2 / (1 - beta1^t) */
    float epsilon;       /* epsilon * root2, with ADAMW */
    float unscale, clip; /* 1 / loss_scale */
};

static struct scalars step_scalars(const struct update_args *a) {
    const bool adamw = a->kind == UPDATE_ADAMW;
    const double t = a->state->updates + 1.0, lr = a->inputs->lr * a->lr_factor;
    const double root2 = adamw ? sqrt(1.0 - pow(a->beta2, t)) : 1;
    return (struct scalars){
        .beta1 = (float)a->beta1,
        .beta1_rest = (float)(1.0 - a->beta1),
        .beta2 = (float)a->beta2,
        .beta2_rest = (float)(1.0 - a->beta2),
        .keep = a->kind == UPDATE_SGD ? 1 : (float)(1.0 - lr * a->weight_decay),
        .decay = (float)a->weight_decay,
        .lr = (float)(adamw ? lr * root2 / (1.0 - pow(a->beta1, t)) : lr),
        .epsilon = (float)(a->epsilon * root2),
        .unscale = (float)(1.0 / (double)a->state->loss_scale),
        .clip = a->state->clip_factor,
    };
}

/* Sets the moments of one element; returns its weight, or with DIRECTION the direction. */
static inline __attribute__((always_inline)) float step(const struct scalars *s, float g, float w,
                                                        float *m, float *v,
                                                        const enum update_kind kind,
                                                        const bool nesterov) {
    const float before = *m;
    float d = g;
    switch (kind) {
    case UPDATE_ADAMW:
        *m = before + s->beta1_rest * (g - before);
        *v = s->beta2 * *v + s->beta2_rest * g * g;
        return s->keep * w - s->lr * *m / (sqrtf(*v) + s->epsilon);
    case UPDATE_SGD:
        g += s->decay * w;
        *m = s->beta1 * before + g;
        d = nesterov ? g + s->beta1 * *m : *m;
        break;
    case UPDATE_LION:
        d = s->beta1 * before + s->beta1_rest * g;
        *m = s->beta2 * before + s->beta2_rest * g;
        d = (float)((d > 0) - (d < 0));
        break;
    case UPDATE_DIRECTION:
        *m = before + s->beta1_rest * (g - before);
        return nesterov ? g + s->beta1 * (*m - g) : *m;
    case UPDATE_APPLY: break;
    }
    return s->keep * w - s->lr * d;
}

/* Updates the elements of one block, with moments in `coded` if that is given. The flags are
 * constants after inlining, so that each combination has a loop of its own in which loads,
 * divisions and stores overlap. */
static inline __attribute__((always_inline)) void
update_block(const struct update_args *a, const struct scalars *s, int64_t first, int64_t n,
             float *coded[2], const enum update_kind kind, const int moments, const bool split,
             const bool bf16_moments, const bool bf16_gradients) {
    float buffer[CPU_BLOCK], directions[CPU_BLOCK];
    const bool weights = kind != UPDATE_DIRECTION;
    const struct tensor *source = kind == UPDATE_APPLY ? a->direction : a->gradients;
    const float *from = buffer;
    const uint16_t *from_bf16 = (const uint16_t *)source->data + first;
    if (!bf16_gradients) from = dtype_widen(buffer, source->data, source->dtype, first, n);
    float *restrict master = weights ? (float *)a->master->data + first : directions;
    uint16_t *restrict upper = split ? (uint16_t *)a->master->data + first : NULL;
    int16_t *restrict remainder = split ? a->remainder + first : NULL;
    void *data[2] = {moments > 0 ? a->moments[0]->data : NULL,
                     moments > 1 ? a->moments[1]->data : NULL};
    float *restrict moment1 = coded ? coded[0] : moments > 0 ? (float *)data[0] + first : NULL;
    float *restrict moment2 = coded ? coded[1] : moments > 1 ? (float *)data[1] + first : NULL;
    uint16_t *restrict moment1_bf16 = moments > 0 ? (uint16_t *)data[0] + first : NULL;
    uint16_t *restrict moment2_bf16 = moments > 1 ? (uint16_t *)data[1] + first : NULL;
    const struct rounding_key key = a->inputs->key;
    const uint32_t index = (uint32_t)(a->first + first);
    const bool nesterov = a->nesterov;
#pragma omp simd
    for (int32_t i = 0; i < (int32_t)n; i++) {
        float g = bf16_gradients ? f32_from_bf16(from_bf16[i]) : from[i], w = 0, m = 0, v = 0;
        if (kind != UPDATE_APPLY) g = g * s->unscale * s->clip;
        if (moments > 0) m = bf16_moments ? f32_from_bf16(moment1_bf16[i]) : moment1[i];
        if (moments > 1) v = bf16_moments ? f32_from_bf16(moment2_bf16[i]) : moment2[i];
        if (weights) w = split ? f32_of_bits(joined_bits(upper[i], remainder[i])) : master[i];
        w = step(s, g, w, &m, &v, kind, nesterov);
        const uint32_t random = bf16_moments ? rounding_bits(key, index + (uint32_t)i) : 0;
        if (moments > 0 && bf16_moments)
            moment1_bf16[i] = (uint16_t)bf16_stochastic(f32_bits(m), random & 0xffff);
        else if (moments > 0) moment1[i] = m;
        if (moments > 1 && bf16_moments)
            moment2_bf16[i] = (uint16_t)bf16_stochastic(f32_bits(v), random >> 16);
        else if (moments > 1) moment2[i] = v;
        if (split) {
            upper[i] = (uint16_t)upper_half(f32_bits(w));
            remainder[i] = remainder_of(f32_bits(w));
        } else {
            master[i] = w;
        }
    }
    if (!weights) dtype_store(a->direction->data, a->direction->dtype, first, directions, n);
    else if (a->copy) copy_masters(a->copy->data, a->copy->dtype, (size_t)first, master, (size_t)n);
}

static void update(const struct update_args *a, const struct scalars *s, int64_t first, int64_t n,
                   float *coded[2]) {
    const struct tensor *source = a->kind == UPDATE_APPLY ? a->direction : a->gradients;
    const bool split = a->remainder != NULL, bf16_gradients = source->dtype == DTYPE_BF16;
    const bool bf16 = a->moments[0] && a->moments[0]->dtype == DTYPE_BF16;
#define X(kind, moments)                                                                       \
    case UPDATE_##kind:                                                                        \
        if (split && bf16 && bf16_gradients)                                                   \
            update_block(a, s, first, n, NULL, UPDATE_##kind, moments, true, true, true);      \
        else if (split && bf16)                                                                \
            update_block(a, s, first, n, NULL, UPDATE_##kind, moments, true, true, false);     \
        else if (split)                                                                        \
            update_block(a, s, first, n, coded, UPDATE_##kind, moments, true, false, false);   \
        else if (bf16)                                                                         \
            update_block(a, s, first, n, NULL, UPDATE_##kind, moments, false, true, false);    \
        else update_block(a, s, first, n, coded, UPDATE_##kind, moments, false, false, false); \
        break;
    switch (a->kind) { UPDATE_KINDS(X) }
#undef X
}

/* The same with moments in 8 bits, between reading and writing their codes. */
static void update_coded(const struct update_args *a, const struct scalars *s, int64_t first,
                         int64_t n) {
    float values[2][CPU_BLOCK];
    struct moment_blocks blocks[2];
    const int moments = update_moments(a->kind);
    for (int i = 0; i < moments; i++) {
        blocks[i] =
            (struct moment_blocks){a->moments[i]->data, a->scales.of[i], i, a->scales.stochastic};
        moment_blocks_load(values[i], &blocks[i], first, n);
    }
    update(a, s, first, n, (float *[]){values[0], values[1]});
    for (int i = 0; i < moments; i++)
        moment_blocks_store(&blocks[i], values[i], first, n, a->inputs->key,
                            (uint32_t)(a->first + first));
}

void cpu_update(struct backend *be, const struct update_args *args) {
    (void)be;
    if (args->state->found_inf) return;
    update_check(args);
    const struct scalars scalars = step_scalars(args);
    const int64_t count = update_count(args);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_of(count, CPU_BLOCK); block++) {
        const int64_t first = block * CPU_BLOCK, n = block_length(first, count, CPU_BLOCK);
        if (args->scales.of[0]) update_coded(args, &scalars, first, n);
        else update(args, &scalars, first, n, NULL);
    }
}
