/* ./train --profile: where the time of a training step goes, and how near it comes to its bare
 * matrix products. */
#pragma once

#include "data/util/error.h"
#include "kernels/observer.h"
#include "model/cli/command_line.h"
#include "model/core/trainer.h"

/* Seconds of a step, medians over the repetitions. */
struct profile {
    int repetitions;
    double step;                      /* as it is */
    double operations[OPERATION_IDS]; /* with a clock around each operation: all of its calls */
    double products; /* the matrix products of the step replayed alone, without epilogues */
    double tokens;   /* of a step */
};

/* Takes `repetitions` steps, each measured in three ways in turn, after one to warm up. The model
 * is trained on the way. */
int profile_trainer(struct profile *profile, struct trainer *trainer, const struct loader *loader,
                    int repetitions, struct error *error);

/* The table of --profile and of make bench: parts of at least 0.05 ms. */
void profile_print(FILE *out, const struct profile *profile);

/* Writes OUT/profile.json too, if line->out is given:
 *
 *   {"precision", "device", "threads", "library", "compiler", "repetitions", "tokens_per_step",
 *    "step_ms", "tokens_per_s", "products_ms", "ratio", "operations": {"matmul": ms, ...}}
 *
 * where ratio is step_ms / products_ms. Returns an exit status. */
int run_profile(const struct config *config, const struct command_line *line, struct error *error);
