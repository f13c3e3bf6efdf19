/* The weights of a new model. */
#pragma once

#include "model/core/gpt.h"

/* Fills the master weights with GPT-2's initialization, a pure function of the seed: the same bits
 * on any machine, with any number of threads. */
void gpt_initialize(struct gpt *gpt, uint64_t seed);

/* The same for adapters alone, which then change nothing yet: B is zero. */
void gpt_initialize_adapters(struct gpt *gpt, uint64_t seed);
