/* The mean loss over text, in training and for --eval. */
#pragma once

#include <signal.h>

#include "data/util/error.h"
#include "model/core/batches.h"

struct evaluator {
    struct gpt *gpt;
    struct batches *batches;
    float *sum;                        /* backend memory for one value */
    float *results[BACKEND_SLOTS];     /* host memory of the backend, one value each */
    const volatile sig_atomic_t *stop; /* optional: not 0 asks to end early */
};

/* Prepares products for the forward pass and the loss of batches of this many sequences; between
 * gpt_open and gpt_allocate, while the backend is planning. */
void evaluate_plan(struct gpt *gpt, int64_t batch, int64_t sequence_length);

/* Mean loss in nats per target that counts of the first `sequences` sequences of the loader, in
 * batches of the model's capacity; what is left over makes a smaller one. The weights do not
 * change. Ranks that train together take turns with the batches, and all get the loss that one rank
 * alone would: the sum is taken in the order of batches. Fails where no target counts. Returns
 * RESULT_STOPPED, without a loss, once evaluator->stop asks for it. */
int evaluate(struct evaluator *evaluator, double *loss, const struct loader *loader,
             int64_t sequences, struct error *error);

/* Says that, before there is anything to evaluate. Returns -1. */
int evaluate_refuse(int64_t sequences, struct error *error);
