/* Mean loss over a text, in training and for --eval. */
#pragma once

#include <signal.h>

#include "data/util/error.h"
#include "model/task/batches.h"

struct evaluator {
    struct model *model;
    struct batches *batches;
    struct step_state *state;          /* backend memory, of which loss and sums are written */
    struct step_sums totals;           /* result: those of all ranks */
    float *results[BACKEND_SLOTS];     /* host memory of the backend, one value each */
    const volatile sig_atomic_t *stop; /* optional: nonzero ends the evaluation early */
    double deadline; /* of reference_compute: progress_clock() that ends it early, or 0 */
    /* Optional: called after each batch of reference_compute, with the sequences done. */
    void (*progress)(void *context, int64_t done, int64_t count);
    void *context;
};

/* Plans the forward pass and the loss. Call it between model_open and model_allocate, while the
 * backend is planning. */
void evaluate_plan(struct model *model, const struct config *config);

/* Sequences that eval.batches counts by, so that the text of a validation depends neither on the
 * micro-batch nor on the number of ranks. Another micro-batch then changes the loss by the order of
 * fp32 sums only, some 2^-24 of it, and by rounding in formats whose scales span a batch. */
enum { EVALUATE_BATCH = 8 };

/* Returns the number of sequences of a validation during a run: EVALUATE_BATCH for each of
 * eval.batches, or all of the text if it has fewer. */
int64_t evaluate_sequences(const struct config *config, const struct loader *loader);

/* Computes the mean loss, in nats per unmasked target or per pair, of the first `sequences`
 * sequences of the loader. Batches have the model's capacity; in the last one, copies whose targets
 * do not count may follow the last sequence. The weights do not change. Batches are divided among
 * ranks, and all ranks get the same loss as one rank alone, since losses are summed in the order of
 * batches. Fails if all targets are masked. Returns RESULT_STOPPED, without a loss, once
 * *evaluator->stop is nonzero. */
int evaluate(struct evaluator *evaluator, double *loss, const struct loader *loader,
             int64_t sequences, struct error *error);

/* Fails with the error for a validation text whose targets are all masked. Returns -1. */
int evaluate_fail_masked(int64_t sequences, struct error *error);
