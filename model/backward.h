/* The backward pass, the mirror image of forward.c: the same operations in reverse order. */
#ifndef MODEL_BACKWARD_H
#define MODEL_BACKWARD_H

#include "model/gpt.h"

/* After gpt_forward and gpt_loss with a loss scale: adds the gradients of the batch in place to
 * all parameters' gradients. */
void gpt_backward(struct gpt *gpt);

#endif
