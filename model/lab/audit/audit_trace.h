/* What an audit looks at in a pass: each activation of the model (model/architecture) and, where it
 * is stored, its gradient, in any precision and whatever memory they lie in.
 *
 * A place is one of them by number: the activations in the order of the forward pass, by enum
 * activation_id, then the gradients in the order of the backward pass, the other way around. "d(x)"
 * is the gradient of x. */
#pragma once

#include "kernels/observer.h"
#include "model/gpt.h"

#define GRADIENT_IN(scratch)                                   1
#define GRADIENT_IN_PLACE                                      1
#define NO_GRADIENT                                            0
#define X(field, name, dtype, rows, columns, memory, gradient) +1 + gradient
enum { PLACES = LAYER_ACTIVATIONS(X) MODEL_ACTIVATIONS(X) };
#undef X
#undef GRADIENT_IN
#undef GRADIENT_IN_PLACE
#undef NO_GRADIENT

/* The place of an activation's gradient, which must be stored. */
int place_of_gradient(enum activation_id id);

enum { PLACE_NAME_MAX = 40 };
const char *place_name(char name[PLACE_NAME_MAX], int place);
bool place_is_gradient(int place); /* scaled by the loss scale */
bool place_is_layered(int place);

/* How many layers have it: 1 for those of the whole model, 0 if this model has it not. */
int place_layers(int place, const struct gpt_shape *shape);

/* Words of autocast.float32 that keep it in fp32, all of them together, as bits by enum
 * autocast_site. Tensors of the residual stream have no word: autocast.residual decides. */
unsigned place_words(int place);

enum dtype place_dtype(int place, const struct precision *precision);
void place_label(char *label, size_t size, int place, int layer); /* "layer 3 mlp_fc" */

/* A tensor, or some rows of one, as an operation left it. */
struct traced {
    int place;
    int layer;            /* 0 for places of the whole model */
    struct tensor tensor; /* backend memory */
    int64_t first, total; /* elements: where it begins in the whole tensor, and how many that has */
};

enum { TRACED_MAX = 2 };

/* Fills traced with the activations or gradients that an operation with this label has written, and
 * returns their number; 0 without a label. */
int trace_operation(struct traced traced[TRACED_MAX], struct gpt *gpt,
                    const struct trace_label *label);
