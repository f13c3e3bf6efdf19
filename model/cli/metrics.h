/* metrics.jsonl: one JSON object a line, in the order of training.
 *
 *   {"step", "tokens", "loss", "lr", "grad_norm", "loss_scale", "skipped", "step_ms",
 *    "tokens_per_s", "memory_bytes"}   after each step
 *                                      in fp8 with "fp8_not_finite", "fp8_zero": roundings of that
 *                                      step that met a value that is not finite, or only zeros
 *   {"step", "val_loss"}               after each validation
 *
 * fp32 values carry nine digits, enough to tell any two apart; what is not finite is null. */
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

/* Opens RUN/NAME to append. Of a file that is there the lines stay up to the first that is cut
 * short or for which keep(line, step, context) is false; step 0 keeps none. NULL with a message if
 * it fails. */
typedef bool metrics_keep(const char *line, int64_t step, void *context);
FILE *metrics_open_file(const char *run_directory, const char *name, int64_t step,
                        metrics_keep *keep, void *context, struct error *error);

/* Flushes, and names the file and the key that switches it off where that fails. */
int metrics_flush(FILE *file, const char *name, const char *key, struct error *error);

/* Opens RUN/metrics.jsonl. Lines of steps after `step` (of a run that was killed after its last
 * checkpoint) are cut off, so that the file tells one story; step 0 starts it anew. */
int metrics_open(struct metrics *metrics, const char *run_directory, int64_t step,
                 struct error *error);
int metrics_close(struct metrics *metrics, struct error *error);

/* Each line is flushed, so that a reader or a crash finds whole lines. */
int metrics_step(struct metrics *metrics, const struct step_report *report, double step_ms,
                 double tokens_per_s, uint64_t memory_bytes, struct error *error);
int metrics_validation(struct metrics *metrics, int64_t step, double val_loss, struct error *error);
