/* The backward pass, the mirror image of forward.c: the same operations in reverse order. */
#pragma once

#include "model/core/gpt.h"

/* After gpt_forward and gpt_loss with a loss scale: the gradients of the batch in place become, or
 * are added to, those of all parameters (see gpt->accumulate). */
void gpt_backward(struct gpt *gpt);
