/* Tensors that an audit records in a pass: each activation of the model (model/architecture) and
 * its gradient, if that is stored, in any precision and memory layout.
 *
 * Tensor ids number them: first the activations by enum activation_id, the order of the forward
 * pass; then their gradients in reverse, the order of the backward pass. "d(x)" is the gradient of
 * x. PARAMETERS, the last id, is the gradients of parameters. */
#pragma once

#include "kernels/observer.h"
#include "model/core/gpt.h"

enum { TENSOR_IDS = 2 * ACTIVATION_COUNT, PARAMETERS = TENSOR_IDS };

/* Returns the tensor id of an activation's gradient. */
static inline int tensor_id_of_gradient(enum activation_id id) {
    return TENSOR_IDS - 1 - (int)id;
}

bool tensor_id_is_gradient(int id); /* scaled by the loss scale */
bool tensor_id_is_layered(int id);

/* Writes a name such as "layer 3 d(mlp_fc)". The layer is left out for tensors outside the layers
 * and if it is -1. Returns label. */
enum { TENSOR_ID_LABEL_MAX = 80 };
const char *tensor_id_label(char label[TENSOR_ID_LABEL_MAX], int id, int layer);

/* Returns the number of layers that have the tensor: 1 for tensors outside the layers, 0 if the
 * model does not have the tensor or does not store the gradient. */
int tensor_id_layers(int id, const struct gpt_shape *shape);

/* Returns the operations that must all be in autocast.float32 to keep the tensor in fp32, as bits
 * by enum autocast_site. Returns 0 for the residual stream, which autocast.residual controls. */
unsigned tensor_id_sites(int id);

enum dtype tensor_id_dtype(int id, const struct precision *precision);

/* A tensor, or some rows of one, written by an operation. */
struct traced {
    int id;
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
