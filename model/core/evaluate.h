/* Mean loss over a text, in training and for --eval. */
#pragma once

#include <signal.h>

#include "data/util/error.h"
#include "model/core/batches.h"

struct evaluator {
    struct gpt *gpt;
    struct batches *batches;
    float *sum;                        /* backend memory for one value */
    float *results[BACKEND_SLOTS];     /* host memory of the backend, one value each */
    const volatile sig_atomic_t *stop; /* optional: nonzero ends the evaluation early */
};

/* Plans the forward pass and the loss for batches of this many sequences. Call it between gpt_open
 * and gpt_allocate, while the backend is planning. */
void evaluate_plan(struct gpt *gpt, int64_t batch, int64_t sequence_length);

/* Computes the mean loss, in nats per unmasked target, of the first `sequences` sequences of the
 * loader. Batches have the model's capacity; the last one may be smaller. The weights do not
 * change. Batches are divided among ranks, and all ranks get the same loss as one rank alone, since
 * losses are summed in the order of batches. Fails if all targets are masked. Returns
 * RESULT_STOPPED, without a loss, once *evaluator->stop is nonzero. */
int evaluate(struct evaluator *evaluator, double *loss, const struct loader *loader,
             int64_t sequences, struct error *error);

/* Fails with the error for a validation text whose targets are all masked. Returns -1. */
int evaluate_fail_masked(int64_t sequences, struct error *error);
