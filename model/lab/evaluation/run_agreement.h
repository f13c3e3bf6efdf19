/* The command ./train --agreement: differences between the probabilities of tokens in the sampler
 * and in the training forward pass. Reinforcement learning on samples assumes that there are
 * none. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"
#include "model/cli/command_line.h"

/* Samples texts, line->samples or 8, at temperature 1 with the key-value cache, or with
 * sample.exact as the training forward pass does, and computes the predictions of the same tokens
 * with the training forward pass. Texts have sample.tokens tokens if a flag sets it above 0,
 * else 64. Prints how they differ, and writes agreement.json into line->out, which it creates.
 * Returns an exit status. */
int run_agreement(const struct config *config, const char *from, const struct command_line *line,
                  struct error *error);

struct cJSON;

/* Differences between two predictions of the same tokens: of a sampler and of a trainer. */
struct agreement {
    double *differences;  /* stb_ds array: |log P of the trainer - log P of the sampler| */
    double kl;            /* sum of KL(sampler || trainer) over the tokens, in nats */
    int64_t rank_changed; /* tokens whose rank among all tokens differs */
    int64_t same_bits;    /* tokens whose logits all have the same bits */
};

/* Adds a token that was drawn from the sampler's logits; both [vocabulary]. */
void agreement_add(struct agreement *agreement, const float *sampler, const float *trainer,
                   int64_t vocabulary, int token);

/* Adds the figures of at least one token to a row of the report, and sorts the differences. */
void agreement_report(struct cJSON *row, struct agreement *agreement);

/* Prints what the KL divergence in a row means for training on the samples. exact: sample.exact. */
void agreement_print(FILE *out, const struct cJSON *row, bool exact);
