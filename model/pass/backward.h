/* The backward pass, the mirror image of forward.c: the same operations in reverse order. */
#pragma once

#include "model/pass/pass.h"

/* Computes the gradients of all parameters for the batch of a PASS_TRAIN. Those of matrices are
 * replaced if pass->first, and all others added to. Call it after model_forward and objective_loss.
 */
void model_backward(const struct pass *pass);
