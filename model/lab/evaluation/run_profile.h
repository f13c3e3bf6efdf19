/* ./train --profile: time of a training step by operation, compared with its matmuls alone. */
#pragma once

#include "data/util/error.h"
#include "kernels/observer.h"
#include "model/cli/command_line.h"
#include "model/optimize/trainer.h"

/* Seconds per step: medians over the repetitions. */
struct profile {
    int repetitions;
    double step;                      /* unmodified step */
    double operations[OPERATION_IDS]; /* all calls of an operation, each timed separately */
    double matmuls;                   /* matmuls of the step replayed alone, without epilogues */
    double tokens;                    /* tokens per step */
};

/* After a warm-up step, measures `repetitions` rounds: an unmodified step, a step with each
 * operation timed, and the replayed matmuls. The steps train the model. */
int profile_trainer(struct profile *profile, struct trainer *trainer, const struct loader *loader,
                    int repetitions, struct error *error);

/* Prints the table of --profile and make bench. Operations below 0.05 ms are left out. */
void profile_print(FILE *out, const struct profile *profile);

/* Runs --profile. If line->out is given, also writes OUT/profile.json:
 *
 *   {"precision", "device", "threads", "library", "compiler", "repetitions", "tokens_per_step",
 *    "step_ms", "tokens_per_s", "products_ms", "ratio", "operations": {"matmul": ms, ...},
 *    "fallbacks": [text, ...]}
 *
 * Here ratio is step_ms / products_ms, and a fallback is a matmul that does not run as requested,
 * with the reason. Returns an exit status. */
int run_profile(const struct config *config, const char *from, const struct command_line *line,
                struct error *error);
