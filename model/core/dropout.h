/* Dropout of a training step: on the embedding, on the branches before they are added to the
 * residual stream (model.dropout), and on the inputs of adapters (adapter.dropout). Preference
 * losses have none unless objective.dropout is set: it would act on the policy alone, and move a
 * first loss of DPO away from log 2.
 *
 * What is dropped is a function of the seed, the use, the layer and the token's place among all
 * tokens of the run. So it does not depend on the division of a step into micro-batches and ranks,
 * and the backward pass draws it again. */
#pragma once

#include <stdbool.h>

#include "kernels/backend.h"
#include "model/config/config.h"

/* Uses in a layer, each with draws of its own; DROPOUT_ADAPTER + SITE: the adapters of a site. */
enum dropout_use {
    DROPOUT_EMBEDDING,
    DROPOUT_ATTENTION,
    DROPOUT_MLP,
    DROPOUT_ADAPTER,
    DROPOUT_USES = DROPOUT_ADAPTER + AUTOCAST_SITE_COUNT
};

struct dropout {
    double residual, adapter; /* probabilities, 0 where the objective has no dropout */
    uint64_t seed;
};

struct dropout dropout_of(const struct config *config);

struct rounding_key dropout_key(const struct dropout *dropout, enum dropout_use use, int64_t layer);
