/* One training step: micro-batches forward and backward, then norm, clip, update, loss scale.
 *
 *     for each micro-batch: forward, loss, backward   (gradients accumulate, scaled)
 *     gradient norm and found_inf over all gradients  (unscaled)
 *     update rule: unscale, clip, update              (nothing if found_inf)
 *     loss scale: back off or grow                    (fp16 only)
 *
 * The loss of a step is the mean over the unmasked targets (data/corpus/token_mask.h) of all its
 * micro-batches. A step without unmasked targets has a loss and gradients of 0; moments and weight
 * decay are updated as in any step.
 *
 * The samples of a step follow those of the step before, and the loader orders them by the seed
 * alone. A run can therefore stop anywhere, and resume with another batch size. */
#pragma once

#include <signal.h>

#include "data/corpus/loader.h"
#include "data/tokenize/tokenizer.h"
#include "data/util/error.h"
#include "model/config/config.h"
#include "model/core/model.h"
#include "model/optimize/optimizer.h"
#include "model/task/batches.h"
#include "model/task/evaluate.h"

/* The validation with the lowest loss so far. */
struct best_validation {
    double loss;
    int64_t step;  /* step after which it was measured; 0: no validation yet */
    int64_t since; /* number of later validations, none of them lower */
    int64_t last;  /* step of the last validation; 0: none, or an older checkpoint lacks it */
};

/* Progress of a run: the state in a checkpoint besides weights and moments. */
struct training_state {
    int64_t step;        /* steps done */
    int64_t tokens;      /* tokens seen */
    int64_t next_sample; /* first sample of the next step */
    struct best_validation best;
    struct step_state scaler;
};

struct step_report {
    int64_t step; /* the step just done, counted from 1 */
    int64_t tokens;
    float loss, gradient_norm, loss_scale; /* loss_scale: as used in this step */
    double lr;
    int32_t quantized_not_finite, quantized_zero; /* as in struct step_state */
    bool quantizes;                               /* true if these counts apply */
    bool skipped;
    struct step_sums sums; /* of the objective */
};

/* A step whose operations are queued, but whose result has not been read. */
struct queued_step {
    int64_t step, tokens; /* values after the step */
    double lr;
};

enum hashed_data { HASHED_TRAIN, HASHED_VAL, HASHED_TEACHER, HASHED_DATA };

struct trainer {
    const struct config *config;
    struct backend *be;
    struct model model;
    struct optimizer optimizer;
    struct training_state state; /* step, tokens, next_sample: of steps begun; scaler: of the last
                                  * step ended */

    struct batches batches;
    struct step_state *results;               /* host, [BACKEND_SLOTS] */
    struct queued_step queued[BACKEND_SLOTS]; /* `unfinished` of them are in use */
    int first_queued, unfinished;
    struct step_sums validated; /* the objective's sums over the last validation */
    int losses_lost; /* steps in a row with a non-finite loss, except those that lower fp16's loss
                      * scale */
    /* Optional: nonzero ends long work other than training steps early. */
    const volatile sig_atomic_t *stop;
    const struct tokenizer *tokenizer; /* optional: its files are saved in checkpoints */
    const struct base_files *base;     /* optional: those of model/io/base_files.h, saved too */
    /* Optional: hashes of the training and validation data and of the teacher, saved too. */
    const char *data_hashes[HASHED_DATA];
};

enum trainer_memory {
    TRAINER_PLANNED,    /* no memory: only the plan is available */
    TRAINER_EMPTY,      /* all zero; weights are loaded or trainer_initialize is called later */
    TRAINER_INITIALIZED /* initial weights are set */
};

/* Lays out the model, plans every operation of one step so that the memory plan is complete, and
 * allocates that memory. */
int trainer_open(struct trainer *trainer, const struct config *config,
                 const struct precision *precision, struct backend *be, enum trainer_memory memory,
                 struct error *error);
/* Sets the initial weights, from config->seed. */
void trainer_initialize(struct trainer *trainer);
void trainer_close(struct trainer *trainer);

/* Queue the two parts of the next step: the forward and backward passes of its micro-batches on the
 * loader's data, then the update. The first one fails on bad data; weights and state are then
 * unchanged. Ranks may exchange messages between the two calls. Such a message is queued behind the
 * gradients, but ahead of the updated weights. At most BACKEND_SLOTS steps can be unfinished; the
 * state is up to date when none is. */
int trainer_accumulate(struct trainer *trainer, const struct loader *loader, struct error *error);
void trainer_update(struct trainer *trainer);

/* Queues both parts. */
int trainer_begin_step(struct trainer *trainer, const struct loader *loader, struct error *error);

/* Waits for the oldest unfinished step and reports it. Fails if an operation failed, with
 * report->step 0, or if too many steps in a row have infinite gradients or a non-finite loss. */
int trainer_end_step(struct trainer *trainer, struct step_report *report, struct error *error);

/* Waits for the weights that other ranks updated, so that code other than the next step may read
 * them. Only when no step is unfinished. */
void trainer_wait_for_weights(struct trainer *trainer);

/* Returns a forward and backward pass over the last of trainer->batches: of the first or the last
 * micro-batch of a step, or both. */
struct pass trainer_pass(struct trainer *trainer, bool first, bool last);

/* Computes the mean loss over the unmasked targets of the first `sequences` sequences, as evaluate
 * does; the weights do not change. Returns RESULT_STOPPED, without a loss, once *trainer->stop is
 * nonzero. */
int trainer_evaluate(struct trainer *trainer, double *loss, const struct loader *loader,
                     int64_t sequences, struct error *error);

/* Returns an evaluator of the model, in memory that is unused between steps. */
struct evaluator trainer_evaluator(struct trainer *trainer);

/* Uploads the scaler of trainer->state, after a checkpoint was read. */
void trainer_restore_scaler(struct trainer *trainer);
