/* One pass of an audit: all micro-batches, forward and backward, in one precision; and the tensors
 * that it records, each activation of the model (model/architecture) and its gradient, if that is
 * stored, in any precision and memory layout.
 *
 * Tensor ids number them: first the activations by enum activation_id, the order of the forward
 * pass; then their gradients in reverse, the order of the backward pass. "d(x)" is the gradient of
 * x. PARAMETERS, the last id, is the gradients of parameters. */
#pragma once

#include "kernels/observer.h"
#include "model/lab/audit/audit_subject.h"
#include "model/lab/audit/magnitudes.h"

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

/* Returns the number of layers, of which one or more have the tensor: 1 for tensors outside the
 * layers, 0 if the model does not have the tensor or does not store the gradient. */
int tensor_id_layers(int id, const struct model_shape *shape);

/* True if a layer lacks a tensor that others have, as Gated DeltaNets and attention do. */
bool tensor_id_is_absent(int id, const struct model_shape *shape, int64_t layer);

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
int trace_operation(struct traced traced[TRACED_MAX], struct model *model,
                    const struct trace_label *label);

/* ---- passes */

/* Number of micro-batches of a trial, enough to compare two errors. */
enum { PASS_TRIAL_BATCHES = 2 };

/* A traced pass records every tensor. The others record only the gradients of parameters, a trial
 * those of at most PASS_TRIAL_BATCHES micro-batches. */
enum audit_kind { PASS_TRACED, PASS_GRADIENTS, PASS_TRIAL };

struct audit_pass {
    struct precision precision;
    float loss_scale;
    double loss;            /* mean over all tokens */
    double gradient_error;  /* error of all parameters' gradients together, see record_error */
    double gradient_cosine; /* cosine of their angle with those of the reference */
    double first_error;     /* gradient_error of the first PASS_TRIAL_BATCHES micro-batches */
    /* fp32 pass only: distance of a micro-batch's gradient from the mean gradient, relative to the
     * mean; 0 for a single micro-batch. */
    double gradient_noise;
    bool finite;        /* loss and gradients of all parameters are finite */
    int first_infinite; /* id of the first tensor that is not finite, or -1 */
    /* stb_ds arrays: a record for each layer (tensor_id_layers) or trained parameter; unless traced
     * only those of parameters are filled. Then the fp32 master weights, in the fp32 pass only, and
     * a copy of model->list. */
    struct record *records[TENSOR_IDS + 1];
    struct magnitudes *weights;
    struct parameter *list;
};

/* Runs trainer, which has the subject's weights, over the micro-batches, and clears the gradients
 * before each. The weights do not change. reference: fp32 pass that all tensors are compared with,
 * or NULL. Returns RESULT_STOPPED after a signal in *subject->stop. The pass is to be freed in
 * every case. */
int audit_pass_run(struct audit_pass *pass, struct subject *subject, struct trainer *trainer,
                   const struct audit_pass *reference, enum audit_kind kind, struct error *error);
void audit_pass_free(struct audit_pass *pass);

enum pass_outcome { PASS_FINITE, PASS_GRADIENTS_INFINITE, PASS_LOSS_INFINITE };

/* Returns the number of micro-batches of audit_pass_try: subject->repetitions. With 16-bit
 * gradients it is at least a whole step, because their sum may overflow even if no micro-batch
 * does. */
int audit_pass_tried(const struct subject *subject, const struct precision *precision);

/* Sets *outcome to whether loss and gradients of these micro-batches are finite at this loss scale.
 * Gradients are accumulated as in training. Ends at the first micro-batch that is not finite.
 * Returns like audit_pass_run. */
int audit_pass_try(enum pass_outcome *outcome, struct subject *subject, struct trainer *trainer,
                   float loss_scale, struct error *error);
