/* Objectives: what training minimizes, and all that depends on it. Each value of train.objective
 * (OBJECTIVES in model/config/config.h) is a row, objective_NAME, and so is language with a
 * teacher's logits, objective_distillation. A new loss is a line of OBJECTIVES and a file that
 * defines its row. */
#pragma once

#include "data/util/error.h"
#include "kernels/kernels.h"
#include "model/config/config.h"

struct batch_view;
struct loader;
struct loader_arrays;
struct pass;

/* A mean over a step or a validation: the quotient of two of its sums or, with less_count, the
 * difference of two quotients. NaN if it is unknown. */
struct objective_figure {
    const char *name;                     /* in metrics.jsonl, behind "val_" for a validation */
    int sum, count, less_sum, less_count; /* indices */
    const char *label, *unit;             /* in console lines, or NULL: not shown there */
    const char *title; /* of its column of --eval, with one more decimal, or NULL */
    float factor;      /* of the value in both, where it has so many decimals */
    int decimals;
};

double objective_value(const struct objective_figure *figure, const struct step_sums *sums,
                       float factor);

enum { OBJECTIVE_SETTINGS = 5 };

/* Fields that are NULL or 0 stand for what language does: the cross entropy of each token. */
struct objective {
    bool trains_prompts; /* of pairs: the prompt of the chosen answer counts too */
    int kind;            /* of its own, for rows of one file: enum preference_objective */
    int sums;            /* number of values in step_sums.values */

    /* Sets the bytes of a batch's `extra`, which is sent with it, and of pass.memory, which only
     * passes read and write; they are 0 before. rows: B T. */
    void (*bytes)(const struct config *config, int64_t rows, size_t *extra, size_t *memory);

    /* Reads samples as loader_batch does, with `extra`. */
    int (*read)(const struct config *config, const struct batch_view *host,
                const struct loader *loader, struct loader_arrays *arrays, uint64_t first_sample,
                int count, struct error *error);

    /* Computes losses, gradients and sums: see objective_loss. */
    void (*loss)(const struct pass *pass);

    /* Writes the settings of the loss for the banner, "" for those to leave out. train may be
     * NULL. Language has no such line. */
    void (*describe)(char settings[OBJECTIVE_SETTINGS][64], const struct config *config,
                     const struct loader *train);

    /* Ended by one without a name. With none, --eval shows perplexity and bits per byte. */
    const struct objective_figure *figures;

    /* Returns a loss that only diverged training exceeds; for language that depends on its first
     * loss (model/cli/divergence.h). */
    double (*limit)(const struct config *config);
};

/* Fills activations.losses with the losses of pass->objective, of each token or of each pair in its
 * first row, after model_forward, and adds to its sums. In PASS_TRAIN gradients are those of
 * batch.inputs->loss_weight * *loss_scale * sum(losses). */
void objective_loss(const struct pass *pass);

/* Returns the row of a config, of which distill_top is set if a teacher's logits are open. */
const struct objective *objective_of(const struct config *config);

#define X(NAME, name, ...) extern const struct objective objective_##name;
OBJECTIVES(X)
X(DISTILLATION, distillation)
#undef X
