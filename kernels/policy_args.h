/* Losses of completions with an advantage, for learning from rewards: the operation's arguments, as
 * in kernels/kernels.h. kernels/policy_loss.h has the formulas. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Plain data, which CUDA kernels receive by value. */
struct policy_rule {
    bool cispo;          /* the ratio is a constant factor */
    bool sequence_level; /* one ratio for all tokens of a completion */
    bool corrects_kl;    /* the divergence is multiplied by the ratio */
    float low, high;     /* epsilon and epsilon_high */
    float delta;         /* upper limit of the ratio, or infinity */
    float beta;          /* factor of the divergence */
};

/* Sums over a step; the last five are of its host, added with its first micro-batch. */
struct policy_sums {
    float tokens, sequences, micro_batches;
    float units;     /* tokens, or sequences where these have one ratio */
    float low, high; /* those whose ratio is clipped */
    float kl, nll;   /* sums over tokens: of the divergence from the reference, and of -log p */
    float difference, mismatch, largest; /* of sampler and trainer: sums over tokens of |log ratio|
                                          * and of its divergence, and the largest ratio */
    float reward, deviation, constant, length, truncated;
};

struct policy_sequence {
    float advantage;
    float factor; /* of the losses of its tokens */
};

/* Completions of a batch, one a sequence, in backend memory. */
struct policy_batch {
    int32_t has_old, has_reference;
    struct policy_sums host;
    struct policy_sequence sequences[]; /* [B] */
};

/* Replaces losses by those of the policy, and computes the derivative of their sum by each. */
struct policy_args {
    float *losses;  /* [B, T] in: -log p of each target, 0 if it is ignored; out: the loss */
    float *weights; /* [B, T] out: derivatives by the losses given; 0 if ignored */
    const int32_t *targets; /* [B, T], negative: ignored */
    const float *old;       /* [B, T] -log p under the model that the ratio divides by; without
                             * batch->has_old, the losses given */
    const float *reference; /* [B, T] the same of the reference, read with batch->has_reference */
    const float *sampled;   /* [B, T] the same of the sampler */
    int64_t batch, length;  /* B, T */
    struct policy_sums *parts; /* [B] out, of each sequence */
    struct policy_sums *sums;  /* += */
    const struct policy_batch *given;
    struct policy_rule rule;
};
