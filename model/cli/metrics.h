/* metrics.jsonl in a run's directory, unless log.metrics is false: one JSON object a line, in the
 * order of training:
 *
 *   {"step", "tokens", "loss", "lr", "grad_norm", "loss_scale", "skipped", "step_ms",
 *    "tokens_per_s", "memory_bytes",
 *    "time"}                           after each step. "time" is when the line is written, in
 *                                      seconds since 1970. Quantized precisions add
 *                                      "fp8_not_finite" and "fp8_zero": the number of
 *                                      quantizations of that step whose input had a value that
 *                                      is not finite, or only zeros. Pairs of answers add
 *                                      "rewards_chosen", "rewards_rejected", "rewards_margins",
 *                                      "logps_chosen", "logps_rejected" and
 *                                      "rewards_accuracies", or "kl" with kto: means over the step
 *                                      Completions with rewards add the figures of
 *                                      model/task/policy.c
 *   {"step", "val_loss"}               after each validation; pairs add the same with val_ before
 *   {"step", "choices_acc", "choices_acc_norm"}   after the questions of eval.choices
 *
 * fp32 values have nine digits, so that reading them back gives the same bits. Values that are not
 * finite are null. scripts/follow_run.py writes them in the formats of other tools. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"
#include "model/choices/choices.h"
#include "model/config/config.h"
#include "model/optimize/trainer.h"
#include "model/task/objective.h"

struct metrics {
    FILE *file; /* NULL: not written */
    int descriptor;
    long bytes;                             /* length of the file up to its last whole line */
    const struct objective_figure *figures; /* of the objective */
    int64_t last_validation; /* step of the last validation line found or written; -1: none */
};

/* The record of a step. */
struct step_line {
    struct step_report report;
    double step_ms, tokens_per_s;
    uint64_t memory_bytes;
};

/* Opens the file in the run's directory and removes the lines of steps after `step`, which a run
 * leaves when it is killed after its last checkpoint, and everything after a damaged line. Step 0
 * starts an empty file. */
int metrics_open(struct metrics *metrics, const char *run_directory, const struct config *config,
                 int64_t step, struct error *error);
void metrics_close(struct metrics *metrics);

/* Append one line and flush it, so that a concurrent reader or a crash sees whole lines. The
 * message of a failure names the config key that switches the file off. */
int metrics_step(struct metrics *metrics, const struct step_report *report, double step_ms,
                 double tokens_per_s, uint64_t memory_bytes, struct error *error);
/* sums: of the validation, for the objective's figures. */
int metrics_validation(struct metrics *metrics, int64_t step, double val_loss,
                       const struct step_sums *sums, struct error *error);

int metrics_accuracy(struct metrics *metrics, int64_t step, const struct accuracy *accuracy,
                     struct error *error);

/* Removes what a call that failed has left in the file, so that its line can be written again. */
void metrics_repair(struct metrics *metrics);
