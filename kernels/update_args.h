/* Operations of optimizers: their arguments, as in kernels/kernels.h, which includes this. They run
 * once a step, on master weights (kernels/rounding.h). */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/moment_code.h"
#include "kernels/tensor.h"

struct trace_label;

struct step_inputs;
struct step_state;

/* The scales of moments in 8 bits (kernels/moment_code.h), and their rounding. Codes are DYNAMIC8
 * in a tensor, P is a multiple of MOMENT_BLOCK, and element 0 begins a block. Rounding to the
 * nearest code, as in torchao, or stochastic, with the random bits that moments in bf16 have. */
struct moment_scales {
    float *of[2]; /* [P / MOMENT_BLOCK] of each moment; unsigned codes in AdamW's second one */
    bool stochastic;
};

/* Asserts that a moment of `count` elements is in 8 bits exactly if it has scales. */
static inline void moment_check(const struct tensor *moment, const float *scales, int64_t count) {
    const bool coded = moment->dtype == DTYPE_DYNAMIC8;
    assert(tensor_count(moment) == count && coded == (scales != NULL));
    assert(!coded || count % MOMENT_BLOCK == 0);
    (void)coded, (void)scales, (void)count;
}

/* Rules of an update, with their numbers of moments. g is the gradient, unscaled and clipped; lr is
 * that of the inputs times lr_factor; m and v are the moments. The last two are a step in two
 * halves, for rules that change the direction of whole matrices in between.
 *
 *     ADAMW       m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
 *                 w = (1 - lr weight_decay) w - lr / (1 - beta1^t) m / (sqrt(v) / root2 + epsilon),
 *                 where root2 = sqrt(1 - beta2^t), t = state->updates + 1 (Loshchilov, Hutter 2019)
 *     SGD         g += weight_decay w; m = beta1 m + g; d = m, or with nesterov g + beta1 m;
 *                 w -= lr d; as torch.optim.SGD
 *     LION        d = sign(beta1 m + (1 - beta1) g); m = beta2 m + (1 - beta2) g;
 *                 w = (1 - lr weight_decay) w - lr d (Chen et al. 2023, arXiv 2302.06675)
 *     DIRECTION   m = beta1 m + (1 - beta1) g; direction = m, or with nesterov
 *                 (1 - beta1) g + beta1 m; as torch.optim.Muon
 *     APPLY       w = (1 - lr weight_decay) w - lr direction */
#define UPDATE_KINDS(X) X(ADAMW, 2) X(SGD, 1) X(LION, 1) X(DIRECTION, 1) X(APPLY, 0)

enum update_kind {
#define X(kind, moments) UPDATE_##kind,
    UPDATE_KINDS(X)
#undef X
};

/* One step, in one pass that also unscales and clips the gradient and writes the 16-bit copy.
 * Nothing changes if state->found_inf. Arithmetic is fp32 for all dtypes; kernels/rounding.h
 * describes split and copied master weights, and the rounding of moments. */
struct update_args {
    enum update_kind kind;
    const struct tensor
        *master;               /* [P] fp32; bf16: upper halves of split ones; not with DIRECTION */
    int16_t *remainder;        /* [P], given exactly when master weights are split */
    const struct tensor *copy; /* optional [P] 16 bit, of fp32 master weights */
    const struct tensor *moments[2]; /* [P] as many as the rule has: fp32, bf16, or both 8 bits */
    struct moment_scales scales;     /* with moments in 8 bits */
    const struct tensor *gradients;  /* [P], scaled; not with APPLY */
    const struct tensor *direction;  /* [P], with DIRECTION, which writes it, and APPLY */
    const struct step_state *state;
    const struct step_inputs *inputs; /* lr and key are read */
    int64_t first;                    /* index of element 0 in the random sequence */
    double beta1, beta2, epsilon, weight_decay;
    double lr_factor; /* factor of the learning rate */
    bool nesterov;
};

/* Returns the number of moments of a rule. */
static inline int update_moments(enum update_kind kind) {
#define X(kind, moments) moments,
    static const int counts[] = {UPDATE_KINDS(X)};
#undef X
    return counts[kind];
}

/* Returns the number of elements. */
static inline int64_t update_count(const struct update_args *args) {
    return tensor_count(args->kind == UPDATE_DIRECTION ? args->direction : args->master);
}

/* Asserts what holds for the arguments of every rule. */
static inline void update_check(const struct update_args *args) {
    const bool weights = args->kind != UPDATE_DIRECTION, apply = args->kind == UPDATE_APPLY;
    const int64_t count = update_count(args);
    assert(!args->master == !weights && (weights || !(args->remainder || args->copy)));
    assert(!weights || args->master->dtype == (args->remainder ? DTYPE_BF16 : DTYPE_F32));
    assert(!(args->copy && args->remainder));
    for (int i = 0; i < 2; i++) {
        const struct tensor *moment = args->moments[i];
        assert(!moment == (i >= update_moments(args->kind)));
        if (!moment) continue;
        assert(moment->dtype != DTYPE_F16 && moment->dtype == args->moments[0]->dtype);
        moment_check(moment, args->scales.of[i], count);
    }
    assert(apply ? !args->gradients : tensor_count(args->gradients) == count);
    assert(!args->direction == (weights && !apply));
    assert(!args->direction || tensor_count(args->direction) == count);
    (void)weights, (void)apply, (void)count;
}

/* out = in / max(|in|, epsilon), where |in| is the root of the sum of squares. The sum is accurate
 * as if added in fp64, in a fixed order. */
struct normalize_args {
    const struct tensor *out; /* same count as in; may be in */
    const struct tensor *in;
    float epsilon;
};

/* out[r][out_first + j] = alpha a[r][a_first + j] + beta b[r][j] for j < columns; fp32 arithmetic.
 * With groups of G columns, j is j / G * step + j % G in out and in a. */
struct weighted_sum_args {
    const struct tensor *out; /* [N, ...] */
    const struct tensor *a;   /* [N, ...], may be out */
    const struct tensor *b;   /* optional [N, columns] */
    int64_t out_first, a_first, columns;
    int64_t group; /* G, which divides columns; 0: one group */
    int64_t out_step, a_step;
    float alpha, beta;
    const struct trace_label *label; /* optional */
};
