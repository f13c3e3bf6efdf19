/* metrics.csv: the values of metrics.jsonl as a table for spreadsheets and pandas.
 *
 * A header is followed by one row per step and one row per validation. A validation row has only
 * step and val_loss; its other cells are empty. fp8_not_finite and fp8_zero are empty except in
 * fp8. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"
#include "model/core/trainer.h"

struct metrics_csv {
    FILE *file; /* NULL: nothing is written */
};

/* Opens RUN/metrics.csv and removes the rows of steps after `step`, as metrics_open does. */
int metrics_csv_open(struct metrics_csv *csv, const char *run_directory, int64_t step,
                     struct error *error);
void metrics_csv_close(struct metrics_csv *csv);

/* Append one row and flush it. */
int metrics_csv_step(struct metrics_csv *csv, const struct step_report *report, double step_ms,
                     double tokens_per_s, uint64_t memory_bytes, struct error *error);
int metrics_csv_validation(struct metrics_csv *csv, int64_t step, double val_loss,
                           struct error *error);
