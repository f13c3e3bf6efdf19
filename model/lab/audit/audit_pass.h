/* One pass of an audit: all micro-batches, forward and backward, in one precision. */
#pragma once

#include "data/util/error.h"
#include "model/lab/audit/audit_subject.h"
#include "model/lab/audit/audit_trace.h"
#include "model/lab/audit/magnitudes.h"

/* Number of micro-batches of a trial, enough to compare two errors. */
enum { PASS_TRIAL_BATCHES = 2 };

/* A traced pass records every tensor. The others record only the gradients of parameters, a trial
 * those of at most PASS_TRIAL_BATCHES micro-batches. */
enum pass_kind { PASS_TRACED, PASS_GRADIENTS, PASS_TRIAL };

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
     * a copy of gpt->list. */
    struct record *records[TENSOR_IDS + 1];
    struct magnitudes *weights;
    struct parameter *list;
};

/* Runs trainer, which has the subject's weights, over the micro-batches, and clears the gradients
 * before each. The weights do not change. reference: fp32 pass that all tensors are compared with,
 * or NULL. Returns RESULT_STOPPED after a signal in *subject->stop. The pass is to be freed in
 * every case. */
int audit_pass_run(struct audit_pass *pass, struct subject *subject, struct trainer *trainer,
                   const struct audit_pass *reference, enum pass_kind kind, struct error *error);
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
