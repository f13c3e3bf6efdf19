/* One training step: micro-batches forward and backward, then norm, clip, update, loss scale.
 *
 *     for each micro-batch: forward, loss, backward   (gradients accumulate, scaled)
 *     gradient norm and found_inf over all gradients  (unscaled)
 *     AdamW: unscale, clip, update                    (nothing if found_inf)
 *     loss scale: back off or grow                    (fp16 only)
 *
 * The loss of a step is the mean over its targets that count (data/corpus/token_mask.h), of all
 * micro-batches together. A step without any has a loss and gradients of 0, and is an update like
 * others: moments and weight decay go on.
 *
 * The batch of step s is a function of (seed, s) alone, so a run can stop and go on anywhere. */
#pragma once

#include <signal.h>

#include "data/util/error.h"
#include "data/corpus/loader.h"
#include "data/tokenize/tokenizer.h"
#include "model/core/batches.h"
#include "model/config/config.h"
#include "model/core/gpt.h"
#include "model/core/optimizer.h"

/* The validation with the lowest loss so far. */
struct best_validation {
    double loss;
    int64_t step;  /* after which it was measured; 0: there was no validation */
    int64_t since; /* validations after it, none of which was lower */
};

/* Progress of a run: the state in a checkpoint beside weights and moments. */
struct training_state {
    int64_t step;   /* steps done */
    int64_t tokens; /* tokens seen */
    struct best_validation best;
    struct step_state scaler;
};

struct step_report {
    int64_t step; /* counted from 1: the step just done */
    int64_t tokens;
    float loss, gradient_norm, loss_scale; /* loss_scale: the one this step used */
    double lr;
    int32_t fp8_not_finite, fp8_zero; /* as in struct step_state */
    bool fp8;                         /* whether they count something */
    bool skipped;
};

/* A step whose operations are queued, but whose result has not been read. */
struct queued_step {
    int64_t step, tokens; /* as they are after it */
    double lr;
};

struct trainer {
    const struct config *config;
    struct backend *be;
    struct gpt gpt;
    struct optimizer optimizer;
    struct training_state state; /* step, tokens: as begun; scaler: of the last step ended */

    struct batches batches;
    struct step_state *results;               /* host, [BACKEND_SLOTS] */
    struct queued_step queued[BACKEND_SLOTS]; /* of which `unfinished` are in use */
    int first_queued, unfinished;
    int losses_lost; /* steps in a row whose loss is not finite, but for those fp16 backs off in */
    /* Optional: not 0 asks long work that is no training step to end early. */
    const volatile sig_atomic_t *stop;
    const struct tokenizer *tokenizer; /* optional: its files go into checkpoints */
};

enum trainer_memory {
    TRAINER_PLANNED,    /* none: the trainer can only be asked for its plan */
    TRAINER_EMPTY,      /* all is 0, for weights to be loaded or trainer_initialize */
    TRAINER_INITIALIZED /* with the initial weights */
};

/* Lays out the model and walks one step so that every operation is prepared and the memory plan is
 * complete, and takes that memory. */
int trainer_open(struct trainer *trainer, const struct config *config,
                 const struct precision *precision, struct backend *be, enum trainer_memory memory,
                 struct error *error);
/* Sets the initial weights, from config->seed. */
void trainer_initialize(struct trainer *trainer);
void trainer_close(struct trainer *trainer);

/* Queues the next step on the loader's data. Fails on bad data; weights and state are then as
 * before. At most BACKEND_SLOTS steps can be unfinished; the state is settled when none is. */
int trainer_begin_step(struct trainer *trainer, const struct loader *loader, struct error *error);

/* Waits for the oldest unfinished step and reports it. Fails when an operation failed, and when
 * gradients or losses stay infinite where backing off cannot help any more. */
int trainer_end_step(struct trainer *trainer, struct step_report *report, struct error *error);

/* Between steps, when none is unfinished: waits for the weights that other ranks updated, so that
 * others than the next step may use them. */
void trainer_settle(struct trainer *trainer);

/* Mean loss over the targets that count of `batches` micro-batches from the first sequence on; the
 * weights do not change. Returns RESULT_STOPPED, without a loss, once trainer->stop asks for it. */
int trainer_evaluate(struct trainer *trainer, double *loss, const struct loader *loader,
                     int64_t batches, struct error *error);

/* Puts the scaler of trainer->state in force, after a checkpoint was read. */
void trainer_restore_scaler(struct trainer *trainer);
