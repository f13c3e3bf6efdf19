/* Differences between two predictions of the same tokens: of a sampler and of a trainer. */
#pragma once

#include <stdint.h>

struct agreement {
    int64_t tokens, capacity;
    double *differences;  /* [capacity] |log P of the trainer - log P of the sampler| */
    double kl;            /* sum of KL(sampler || trainer) over the tokens, in nats */
    int64_t rank_changed; /* tokens whose rank among all tokens differs */
    int64_t same_bits;    /* tokens whose logits all have the same bits */
};

/* Returns -1 if out of memory. */
int agreement_open(struct agreement *agreement, int64_t capacity);
void agreement_close(struct agreement *agreement);

/* Adds a token that was drawn from the sampler's logits; both [vocabulary]. */
void agreement_add(struct agreement *agreement, const float *sampler, const float *trainer,
                   int64_t vocabulary, int token);

/* Sorts the differences. */
void agreement_finish(struct agreement *agreement);

/* Returns the mean of the differences, and the one that a share of them do not exceed. There must
 * be at least one token. */
double agreement_mean(const struct agreement *agreement);
double agreement_percentile(const struct agreement *agreement, double share);

/* Limits of the mean KL divergence of a token. bf16 engines differ from bf16 trainers by the order
 * of 1e-3 at the start of reinforcement learning, which already biases long runs (Qi et al. 2025,
 * Defeating the Training-Inference Mismatch via FP16); 0.01 is the limit that Tinker's
 * documentation recommends. */
#define AGREEMENT_KL_SAFE  1e-3
#define AGREEMENT_KL_LIMIT 1e-2
