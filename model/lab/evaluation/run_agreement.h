/* The command ./train --agreement: differences between the probabilities of tokens in the sampler
 * and in the training forward pass. Reinforcement learning on samples assumes that there are
 * none. */
#pragma once

#include <stdint.h>

#include "data/util/error.h"
#include "model/config/config.h"

struct agreement_options {
    const enum config_precision *precisions; /* [precision_count] */
    int precision_count;                     /* 0: the config's precision */
    int64_t samples;                         /* number of texts; 0: 8 */
    const char *out;                         /* directory for reports; NULL: none are written */
};

/* Samples texts at temperature 1 with the key-value cache, or with sample.exact as the training
 * forward pass does, and computes the predictions of the same tokens with the training forward
 * pass. Texts have sample.tokens tokens if a flag sets it above 0, else 64. Prints how they differ,
 * and writes agreement.json into options->out, which it creates. Returns an exit status. */
int run_agreement(const struct config *config, const char *from,
                  const struct agreement_options *options, struct error *error);
