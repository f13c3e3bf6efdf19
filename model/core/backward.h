/* The backward pass, the mirror image of forward.c: the same operations in reverse order. */
#pragma once

#include "model/core/gpt.h"

/* Computes the gradients of all parameters for the current batch, and stores or accumulates them
 * (see gpt->accumulate). Call it after gpt_forward and gpt_loss with a loss scale. */
void gpt_backward(struct gpt *gpt);
