/* Dropout of a training step: on the embedding, on the branches before they are added to the
 * residual stream (model.dropout), and on the inputs of adapters (adapter.dropout).
 *
 * What is dropped is a function of the seed, the use, the layer and the token's place among all
 * tokens of the run. So it does not depend on the division of a step into micro-batches and ranks,
 * and the backward pass draws it again. */
#pragma once

#include <stdbool.h>

#include "kernels/backend.h"
#include "model/config/config.h"

enum dropout_use { DROPOUT_EMBEDDING, DROPOUT_ATTENTION, DROPOUT_MLP, DROPOUT_ADAPTER };

struct dropout {
    double residual, adapter; /* probabilities */
    uint64_t seed;
    bool active; /* set during both passes of a training step; evaluation drops nothing */
};

struct dropout dropout_of(const struct config *config);

/* Returns the key of a use in a layer; `which` distinguishes several in a layer. */
struct rounding_key dropout_key(const struct dropout *dropout, enum dropout_use use, int64_t layer,
                                int which);
