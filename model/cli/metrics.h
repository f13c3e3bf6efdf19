/* metrics.jsonl: one JSON object a line, in the order of training.
 *
 *   {"step", "tokens", "loss", "lr", "grad_norm", "loss_scale", "skipped", "step_ms",
 *    "tokens_per_s", "memory_bytes"}   after each step
 *                                      fp8 adds "fp8_not_finite" and "fp8_zero": the number of
 *                                      quantizations of that step whose input had a value that is
 *                                      not finite, or only zeros
 *   {"step", "val_loss"}               after each validation
 *
 * fp32 values have nine digits, so that reading them back gives the same bits. Values that are not
 * finite are null. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"
#include "model/core/trainer.h"

struct metrics {
    FILE *file;              /* NULL: nothing is written */
    int64_t last_validation; /* step of the last validation line found or written; -1: none */
};

/* Opens RUN/NAME to append. An existing file is truncated before its first incomplete line and
 * before the first line for which keep(line, step, context) is false; step 0 removes all lines.
 * Returns NULL with a message on failure. */
typedef bool metrics_keep(const char *line, int64_t step, void *context);
FILE *metrics_open_file(const char *run_directory, const char *name, int64_t step,
                        metrics_keep *keep, void *context, struct error *error);

/* Flushes the file. The error message names the file and the config key that disables it. */
int metrics_flush(FILE *file, const char *name, const char *key, struct error *error);

/* Opens RUN/metrics.jsonl and removes the lines of steps after `step`, which a run leaves when it
 * is killed after its last checkpoint. Step 0 starts an empty file. */
int metrics_open(struct metrics *metrics, const char *run_directory, int64_t step,
                 struct error *error);
int metrics_close(struct metrics *metrics, struct error *error);

/* Append one line and flush it, so that a concurrent reader or a crash sees whole lines. */
int metrics_step(struct metrics *metrics, const struct step_report *report, double step_ms,
                 double tokens_per_s, uint64_t memory_bytes, struct error *error);
int metrics_validation(struct metrics *metrics, int64_t step, double val_loss, struct error *error);
