/* Validation during a run: how much text it takes, the lowest loss so far, and early stopping. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "data/util/error.h"
#include "data/corpus/loader.h"
#include "model/core/trainer.h"

/* Number of micro-batches of a validation: eval.batches, or fewer so that no sequence counts twice,
 * but at least 1. */
int64_t validation_batches(const struct config *config, const struct loader *val);

/* Fails if no target of these batches counts, as the first validation would. */
int validation_check(const struct config *config, const struct loader *val, struct error *error);

/* Records the loss of a validation after `step`. Returns true if it is the lowest so far; a loss
 * that is not finite never is. */
bool validation_record(struct best_validation *best, int64_t step, double loss);

/* True if train.patience is over. */
bool validation_gives_up(const struct config *config, const struct best_validation *best);

/* At the end of a run with checkpoint.keep_best or train.patience: a line that names the lowest
 * loss and, if it was kept, its checkpoint. */
void validation_report(FILE *out, const struct config *config, const struct best_validation *best,
                       const char *run_directory);
