/* The tensors that an audit looks at in a pass: each activation of the model (model/architecture)
 * and, where it is stored, its gradient, in any precision and whatever memory they lie in.
 *
 * A place is one of them by number: the activations in the order of the forward pass, by enum
 * activation_id, then the gradients in the order of the backward pass, the other way around. "d(x)"
 * is the gradient of x. PARAMETERS, behind them, stands for the gradients of parameters. */
#pragma once

#include "kernels/observer.h"
#include "model/core/gpt.h"

enum { PLACES = 2 * ACTIVATION_COUNT, PARAMETERS = PLACES };

/* Returns the place of an activation's gradient. */
static inline int place_of_gradient(enum activation_id id) {
    return PLACES - 1 - (int)id;
}

bool place_is_gradient(int place); /* scaled by the loss scale */
bool place_is_layered(int place);

/* Writes a name such as "layer 3 d(mlp_fc)", without the layer for the whole model and where layer
 * is -1. Returns label. */
enum { PLACE_LABEL_MAX = 80 };
const char *place_label(char label[PLACE_LABEL_MAX], int place, int layer);

/* Returns how many layers have it: 1 for those of the whole model, 0 if this model has it not, or
 * does not store that gradient. */
int place_layers(int place, const struct gpt_shape *shape);

/* Returns the words of autocast.float32 that keep it in fp32, all of them together, as bits by enum
 * autocast_site. Tensors of the residual stream have no word: autocast.residual decides. */
unsigned place_words(int place);

enum dtype place_dtype(int place, const struct precision *precision);

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
