/* Validation during a run: lowest loss so far, early stopping. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "data/util/error.h"
#include "model/optimize/trainer.h"

/* Records the loss of a validation after `step`. True if it is finite and the lowest so far. */
bool validation_record(struct best_validation *best, int64_t step, double loss);

/* True if train.patience validations have passed without a lower loss. */
bool validation_stops_early(const struct config *config, const struct best_validation *best);

/* With checkpoint.keep_best or train.patience, prints the lowest loss and the path of its
 * checkpoint, if that was kept. */
void validation_report(FILE *out, const struct config *config, const struct best_validation *best,
                       const char *run_directory);
