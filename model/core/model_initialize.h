/* The weights of a new model. */
#pragma once

#include "model/core/model.h"

/* Fills the master weights with GPT-2's initialization, a pure function of the seed: the same bits
 * on any machine, with any number of threads. */
void model_initialize(struct model *model, uint64_t seed);

/* The same for adapters alone, which then change nothing yet: B is zero. */
void model_initialize_adapters(struct model *model, uint64_t seed);
