#include "kernels/cpu/cpu.h"
#include "kernels/moment_blocks.h"

/* The scalars of one step, computed in fp64, then rounded once. */
struct scalars {
    float beta1, beta1_rest; /* beta1, and 1 - beta1 */
    float beta2, beta2_rest;
    float keep;  /* 1 - lr * weight_decay; with SGD 1 */
    float decay; /* weight_decay with SGD, else 0 */
    float lr;
    float unscale, clip; /* 1 / loss_scale */
};

static struct scalars step_scalars(const struct momentum_args *a) {
    const double lr = a->inputs->lr * a->lr_factor;
    const bool coupled = a->rule == MOMENTUM_SGD;
    return (struct scalars){
        .beta1 = (float)a->beta1,
        .beta1_rest = (float)(1 - a->beta1),
        .beta2 = (float)a->beta2,
        .beta2_rest = (float)(1 - a->beta2),
        .keep = coupled ? 1 : (float)(1 - lr * a->weight_decay),
        .decay = coupled ? (float)a->weight_decay : 0,
        .lr = (float)lr,
        .unscale = (float)(1.0 / (double)a->state->loss_scale),
        .clip = a->state->clip_factor,
    };
}

/* One element: sets the moment and the direction d. */
static inline __attribute__((always_inline)) float step(const struct scalars *s, float g, float w,
                                                        float *m, const enum momentum_rule rule,
                                                        const bool nesterov) {
    float before = *m;
    switch (rule) {
    case MOMENTUM_SGD:
        g += s->decay * w;
        *m = s->beta1 * before + g;
        return nesterov ? g + s->beta1 * *m : *m;
    case MOMENTUM_LION: {
        float d = s->beta1 * before + s->beta1_rest * g;
        *m = s->beta2 * before + s->beta2_rest * g;
        return (float)((d > 0) - (d < 0));
    }
    case MOMENTUM_DIRECTION:
        *m = before + s->beta1_rest * (g - before);
        return nesterov ? g + s->beta1 * (*m - g) : *m;
    case MOMENTUM_APPLY: return g;
    }
    return 0;
}

/* Updates a block, with moments in `coded` if that is given. The flags are constants after
 * inlining, so that each combination has a loop of its own. source: gradients, or with APPLY the
 * direction. */
static inline __attribute__((always_inline)) void
update_block(const struct momentum_args *a, const struct scalars *s, int64_t first, int64_t n,
             float *coded, const enum momentum_rule rule, const bool split,
             const bool bf16_moment) {
    float buffer[CPU_BLOCK], directions[CPU_BLOCK];
    const bool weights = rule != MOMENTUM_DIRECTION, has_moment = rule != MOMENTUM_APPLY;
    const struct tensor *source = has_moment ? a->gradients : a->direction;
    const float *from = dtype_widen(buffer, source->data, source->dtype, first, n);
    float *restrict master = weights ? (float *)a->master->data + first : NULL;
    uint16_t *restrict upper = weights ? (uint16_t *)a->master->data + first : NULL;
    int16_t *restrict remainder = split ? a->remainder + first : NULL;
    float *restrict moment = coded ? coded : has_moment ? (float *)a->moment->data + first : NULL;
    uint16_t *restrict moment_bf16 = has_moment ? (uint16_t *)a->moment->data + first : NULL;
    const struct rounding_key key = a->inputs->key;
    const uint32_t index = (uint32_t)(a->first + first);
    const bool nesterov = a->nesterov;
#pragma omp simd
    for (int32_t i = 0; i < (int32_t)n; i++) {
        float g = has_moment ? from[i] * s->unscale * s->clip : from[i], w = 0, m = 0;
        if (weights) w = split ? f32_of_bits(joined_bits(upper[i], remainder[i])) : master[i];
        if (has_moment) m = bf16_moment ? f32_from_bf16(moment_bf16[i]) : moment[i];
        float d = step(s, g, w, &m, rule, nesterov);
        if (has_moment && bf16_moment)
            moment_bf16[i] = (uint16_t)bf16_stochastic(
                f32_bits(m), rounding_bits(key, index + (uint32_t)i) & 0xffff);
        else if (has_moment) moment[i] = m;
        if (!weights) directions[i] = d;
        w = s->keep * w - s->lr * d;
        if (weights && split) {
            upper[i] = (uint16_t)upper_half(f32_bits(w));
            remainder[i] = remainder_of(f32_bits(w));
        } else if (weights) {
            master[i] = w;
        }
    }
    if (!weights) dtype_store(a->direction->data, a->direction->dtype, first, directions, n);
    if (weights && a->copy)
        copy_masters(a->copy->data, a->copy->dtype, (size_t)first, master, (size_t)n);
}

static void update(const struct momentum_args *a, const struct scalars *s, int64_t first, int64_t n,
                   float *coded) {
    const bool split = a->remainder != NULL;
    const bool bf16 = a->moment && a->moment->dtype == DTYPE_BF16;
#define FORMS(rule)                                                              \
    case rule:                                                                   \
        if (split && bf16) update_block(a, s, first, n, NULL, rule, true, true); \
        else if (split) update_block(a, s, first, n, coded, rule, true, false);  \
        else if (bf16) update_block(a, s, first, n, NULL, rule, false, true);    \
        else update_block(a, s, first, n, coded, rule, false, false);            \
        break;
    switch (a->rule) {
        FORMS(MOMENTUM_SGD)
        FORMS(MOMENTUM_LION)
        FORMS(MOMENTUM_DIRECTION)
        FORMS(MOMENTUM_APPLY)
    }
#undef FORMS
}

/* The same with a moment in 8 bits, between reading and writing its codes. */
static void update_coded(const struct momentum_args *a, const struct scalars *s,
                         const struct moment_blocks *moments, int64_t first, int64_t n) {
    float values[CPU_BLOCK];
    moment_blocks_load(values, moments, first, n);
    update(a, s, first, n, values);
    moment_blocks_store(moments, values, first, n, a->inputs->key, (uint32_t)(a->first + first));
}

void cpu_momentum(struct backend *be, const struct momentum_args *args) {
    (void)be;
    if (args->state->found_inf) return;
    momentum_check(args);
    struct scalars scalars = step_scalars(args);
    int64_t count = momentum_count(args);
    const bool coded = args->scales.of[0] != NULL;
    struct moment_blocks moments;
    if (coded)
        moments = (struct moment_blocks){args->moment->data, args->scales.of[0], 0,
                                         args->scales.stochastic};
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_of(count, CPU_BLOCK); block++) {
        int64_t first = block * CPU_BLOCK;
        const int64_t n = block_length(first, count, CPU_BLOCK);
        if (coded) update_coded(args, &scalars, &moments, first, n);
        else update(args, &scalars, first, n, NULL);
    }
}
