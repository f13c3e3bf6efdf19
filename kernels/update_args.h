/* Operations of optimizers: their arguments, as in kernels/kernels.h, which includes this. They run
 * once a step, on master weights (kernels/rounding.h). */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/moment_code.h"
#include "kernels/tensor.h"

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

/* One AdamW step (Loshchilov, Hutter 2019; PyTorch's formula with one division instead of two, see
 * kernels/cpu/adamw.c) on the master weights; unscales and clips the gradient in the same pass, and
 * writes the 16-bit copy. Nothing changes if state->found_inf. The bias correction uses t =
 * state->updates + 1. Arithmetic is fp32 for all dtypes; kernels/rounding.h describes split and
 * copied master weights, and the rounding of moments. */
struct adamw_args {
    const struct tensor *master; /* [P] fp32; bf16: upper halves of split master weights */
    int16_t *remainder;          /* [P], given exactly when master weights are split */
    const struct tensor *moment1, *moment2; /* [P] both fp32, both bf16, or both in 8 bits */
    struct moment_scales scales;            /* with moments in 8 bits */
    const struct tensor *copy;              /* optional [P] 16 bit, of fp32 master weights */
    const struct tensor *gradients;         /* [P], scaled */
    const struct step_state *state;
    const struct step_inputs *inputs; /* lr and key are read */
    int64_t first;                    /* index of element 0 in the random sequence */
    double beta1, beta2, epsilon, weight_decay;
    double lr_factor; /* factor of the learning rate */
};

/* Asserts what holds for the arguments of every step. */
static inline void adamw_check(const struct adamw_args *args) {
    const int64_t count = tensor_count(args->master);
    assert(args->master->dtype == (args->remainder ? DTYPE_BF16 : DTYPE_F32));
    assert(args->moment1->dtype == args->moment2->dtype && args->moment1->dtype != DTYPE_F16);
    moment_check(args->moment1, args->scales.of[0], count);
    moment_check(args->moment2, args->scales.of[1], count);
    assert(!(args->copy && args->remainder) && tensor_count(args->gradients) == count);
    (void)count;
}

/* Rules with at most one moment m. g is the gradient, unscaled and clipped. The first two update
 * the weights; the last two are a step in two halves, for rules that change the direction of whole
 * matrices in between.
 *
 *     SGD         g += weight_decay w; m = beta1 m + g; d = m, or with nesterov g + beta1 m;
 *                 w -= lr d; as torch.optim.SGD
 *     LION        d = sign(beta1 m + (1 - beta1) g); m = beta2 m + (1 - beta2) g;
 *                 w = (1 - lr weight_decay) w - lr d (Chen et al. 2023, arXiv 2302.06675)
 *     DIRECTION   m = beta1 m + (1 - beta1) g; direction = m, or with nesterov
 *                 (1 - beta1) g + beta1 m; as torch.optim.Muon
 *     APPLY       w = (1 - lr weight_decay) w - lr direction */
enum momentum_rule { MOMENTUM_SGD, MOMENTUM_LION, MOMENTUM_DIRECTION, MOMENTUM_APPLY };

/* One step, in one pass. Nothing changes if state->found_inf. lr is that of the inputs times
 * lr_factor. Moments in bf16 are rounded stochastically, as by adamw. */
struct momentum_args {
    enum momentum_rule rule;
    const struct tensor *master;    /* [P], not with DIRECTION: as in adamw */
    int16_t *remainder;             /* as in adamw */
    const struct tensor *copy;      /* as in adamw */
    const struct tensor *moment;    /* [P] fp32, bf16 or 8 bits, not with APPLY */
    struct moment_scales scales;    /* with a moment in 8 bits; only the first is read */
    const struct tensor *gradients; /* [P], scaled; not with APPLY */
    const struct tensor *direction; /* [P], with DIRECTION, which writes it, and APPLY */
    const struct step_state *state;
    const struct step_inputs *inputs; /* lr and key are read */
    int64_t first;                    /* index of element 0 in the random sequence */
    double beta1, beta2, weight_decay, lr_factor;
    bool nesterov;
};

/* Returns the number of elements. */
static inline int64_t momentum_count(const struct momentum_args *args) {
    return tensor_count(args->rule == MOMENTUM_DIRECTION ? args->moment : args->master);
}

/* Asserts what holds for the arguments of every rule. */
static inline void momentum_check(const struct momentum_args *args) {
    const bool weights = args->rule != MOMENTUM_DIRECTION, moment = args->rule != MOMENTUM_APPLY;
    assert(!args->master == !weights && (weights || !(args->remainder || args->copy)));
    assert(!weights || args->master->dtype == (args->remainder ? DTYPE_BF16 : DTYPE_F32));
    assert(!args->moment == !moment && !args->gradients == !moment);
    assert(!moment || args->moment->dtype != DTYPE_F16);
    if (moment) moment_check(args->moment, args->scales.of[0], tensor_count(args->moment));
    assert(!args->direction == (args->rule < MOMENTUM_DIRECTION) &&
           !(args->copy && args->remainder));
    (void)weights, (void)moment;
}

/* out = in / max(|in|, epsilon), where |in| is the root of the sum of squares. The sum is accurate
 * as if added in fp64, in a fixed order. */
struct normalize_args {
    const struct tensor *out; /* same count as in; may be in */
    const struct tensor *in;
    float epsilon;
};

/* out[r][out_first + j] = alpha a[r][a_first + j] + beta b[r][j] for j < columns; fp32 arithmetic.
 */
struct weighted_sum_args {
    const struct tensor *out; /* [N, ...] */
    const struct tensor *a;   /* [N, ...], may be out */
    const struct tensor *b;   /* optional [N, columns] */
    int64_t out_first, a_first, columns;
    float alpha, beta;
};
