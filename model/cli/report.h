/* Console output of a training run: the banner, the lines and progress bar of the steps, and the
 * final summary. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "data/corpus/loader.h"
#include "data/util/progress.h"
#include "model/choices/choices.h"
#include "model/optimize/trainer.h"
#include "model/task/objective.h"

struct report {
    FILE *out;
    bool terminal;        /* `out` is a terminal: lines scroll above a progress bar */
    bool bar_visible;     /* the cursor is at the end of the bar */
    int64_t first_step;   /* step at which this process started, for the ETA */
    int64_t steps, every; /* train.steps, and steps between lines */
    double started;       /* progress_clock() at report_open */
    double deadline;      /* progress_clock() at which train.minutes end; 0: none */
    bool shows_first;     /* also print the first step of this process */
    bool scale_loss;
    double floor; /* lower bound of the loss, in nats per token; 0: unknown */
    const struct objective_figure *figures; /* of the objective */
};

/* began: progress_clock() at the start of the program. */
void report_open(struct report *report, FILE *out, const struct trainer *trainer, double began,
                 double floor);

/* Prints model, precision, device, memory, data and schedule. train and val may be NULL. */
void report_banner(struct report *report, const struct trainer *trainer, const struct loader *train,
                   const struct loader *val, const char *run_directory);

/* Prints the memory plan: the total and each part, in MiB. */
void report_memory(FILE *out, const struct memory_plan *plan);

/* Prints a line every `every` steps, after the last one and, with `shows_first`, after the first.
 * On a terminal, redraws the bar. */
void report_step(struct report *report, const struct step_report *step, double step_ms,
                 double tokens_per_s);
void report_validation(struct report *report, int64_t step, double loss,
                       const struct step_sums *sums);

void report_accuracy(struct report *report, int64_t step, const struct accuracy *accuracy);

/* True if train.minutes are over. */
bool report_out_of_time(const struct report *report);

/* Erases the progress bar, so that other output takes its place. */
void report_pause(struct report *report);

/* Prints how many seconds rank 0 waited for other ranks. Prints nothing for one
 * process, or where the device waits instead of the host. */
void report_waited(const struct report *report, double waited);
