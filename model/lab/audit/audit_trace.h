/* Tensors that an audit records in a pass: each activation of the model (model/architecture) and
 * its gradient, if that is stored, in any precision and memory layout.
 *
 * A place is the index of such a tensor: first the activations by enum activation_id, the order of
 * the forward pass; then their gradients in reverse, the order of the backward pass. "d(x)" is the
 * gradient of x. PARAMETERS, the last index, is the gradients of parameters. */
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

/* Writes a name such as "layer 3 d(mlp_fc)". The layer is left out for tensors outside the layers
 * and if it is -1. Returns label. */
enum { PLACE_LABEL_MAX = 80 };
const char *place_label(char label[PLACE_LABEL_MAX], int place, int layer);

/* Returns the number of layers that have the tensor: 1 for tensors outside the layers, 0 if the
 * model does not have the tensor or does not store the gradient. */
int place_layers(int place, const struct gpt_shape *shape);

/* Returns the operations that must all be in autocast.float32 to keep the tensor in fp32, as bits
 * by enum autocast_site. Returns 0 for the residual stream, which autocast.residual controls. */
unsigned place_words(int place);

enum dtype place_dtype(int place, const struct precision *precision);

/* A tensor, or some rows of one, written by an operation. */
struct traced {
    int place;
    int layer;            /* 0 for tensors outside the layers */
    struct tensor tensor; /* backend memory */
    int64_t first;        /* offset in the whole tensor, in elements */
    int64_t total;        /* elements of the whole tensor */
};

enum { TRACED_MAX = 2 };

/* Fills traced with the activations or gradients written by an operation with this trace label.
 * Returns their number, 0 if label is NULL. */
int trace_operation(struct traced traced[TRACED_MAX], struct gpt *gpt,
                    const struct trace_label *label);
