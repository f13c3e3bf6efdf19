/* Losses of pairs of documents for preference tuning, from the log-probabilities of their answers:
 * the operation's arguments, as in kernels/kernels.h. kernels/preference_loss.h has the formulas.
 */
#pragma once

#include <stdint.h>

#include "data/corpus/preference_pair.h"

enum preference_objective {
    PREFERENCE_DPO,
    PREFERENCE_IPO,
    PREFERENCE_ORPO,
    PREFERENCE_KTO,
    PREFERENCE_SIMPO
};

/* Plain data, which CUDA kernels receive by value. */
struct preference_rule {
    enum preference_objective objective;
    float beta;            /* above 0 */
    float label_smoothing; /* s: DPO and SimPO */
    float gamma;           /* SimPO */
    float nll_weight;
    float desirable_weight, undesirable_weight; /* w of KTO */
};

/* Pairs of a batch, in backend memory. */
struct preference_batch {
    int32_t count;
    struct preference_pair pairs[]; /* [count], at most half as many as rows */
};

/* Sums over a pair's targets that are not ignored. */
struct preference_answers {
    float p[PREFERENCE_SIDES]; /* log-probability of each answer */
    float n[PREFERENCE_SIDES]; /* its targets, at least 1 */
    float nll, targets;        /* sum of -log p over the chosen document, and its targets */
};

/* Sums over the pairs of a step. A KTO pair has only one side, by its label. */
struct preference_sums {
    float pairs;
    float sides[PREFERENCE_SIDES];   /* number of answers of each side */
    float rewards[PREFERENCE_SIDES]; /* as TRL defines them for each objective */
    float p[PREFERENCE_SIDES];       /* log-probabilities; with ORPO and SimPO, of a mean token */
    float accurate;                  /* pairs whose chosen answer has the larger reward */
    float kl;                        /* KTO: z, once for each pair */
};

/* Replaces losses by those of pairs, and computes the derivative of their sum by each loss. */
struct preference_args {
    float *losses;          /* [N] in: -log p of each target, 0 if it is ignored; out: the
                             * loss of each pair in its first row, else 0 */
    float *weights;         /* [N] out: derivatives by the losses given; 0 outside pairs */
    const int32_t *targets; /* [N], negative: ignored */
    int64_t count;          /* N */
    struct preference_answers *answers; /* [N / 2] out, of each pair */
    struct preference_sums *sums;       /* += */
    const struct preference_batch *batch;
    struct preference_rule rule;
};
