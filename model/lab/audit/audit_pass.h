/* A pass of an audit: the micro-batches once, forward and backward, in one precision. */
#pragma once

#include "data/util/error.h"
#include "model/lab/audit/audit_subject.h"
#include "model/lab/audit/audit_trace.h"
#include "model/lab/audit/magnitudes.h"

/* Micro-batches that are enough to compare two errors. */
enum { PASS_TRIAL_BATCHES = 2 };

/* A trial takes PASS_TRIAL_BATCHES micro-batches at most, and looks at the
 * gradients of parameters only; a traced pass at every tensor of all of them. */
enum pass_kind { PASS_TRACED, PASS_TRIAL };

struct audit_pass {
    struct precision precision;
    float loss_scale;
    double loss;           /* mean of all tokens */
    double gradient_error; /* of all parameters' gradients together, see record_error */
    double first_error;    /* the same of the first PASS_TRIAL_BATCHES micro-batches */
    /* Of the fp32 pass: how far the gradient of a micro-batch is from the mean of all of them,
     * relative to that; 0 if there is but one. */
    double gradient_noise;
    bool finite;                       /* loss and gradients of all parameters */
    int first_infinite;                /* the place that had something infinite first, -1: none */
    int layers[PLACES + 1];            /* place_layers; of PARAMETERS their number */
    struct record *places[PLACES + 1]; /* [layers]; in a trial only PARAMETERS are filled */
    int parameter_count;
    struct record *parameters;  /* places[PARAMETERS] */
    struct magnitudes *weights; /* [parameter_count] of the fp32 masters, in the fp32 pass */
    struct parameter *list;     /* [parameter_count]: what they are */
};

/* Runs trainer, which has subject's weights, over the micro-batches, each from cleared gradients;
 * its weights stay. With reference, the pass in fp32, everything is compared with it. Returns
 * RESULT_STOPPED when subject->stop asked for it. The pass is to be freed whatever comes back. */
int audit_pass_run(struct audit_pass *pass, struct subject *subject, struct trainer *trainer,
                   const struct audit_pass *reference, enum pass_kind kind, struct error *error);
void audit_pass_free(struct audit_pass *pass);

enum pass_outcome { PASS_FINITE, PASS_GRADIENTS_INFINITE, PASS_LOSS_INFINITE };

/* Returns the number of micro-batches that audit_pass_try takes: the repetitions, but at least a
 * whole step of training where its sum of gradients is 16 bit and may overflow when no part of it
 * does. */
int audit_pass_tried(const struct subject *subject, const struct precision *precision);

/* Sets *outcome: whether loss and gradients of these micro-batches are finite at this loss scale,
 * with gradients summed up as training does. Ends at the first that is not. Returns as above. */
int audit_pass_try(enum pass_outcome *outcome, struct subject *subject, struct trainer *trainer,
                   float loss_scale, struct error *error);
