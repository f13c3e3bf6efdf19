/* What a person sees of a run: the banner, a line or a progress bar for the steps, the end. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "data/util/progress.h"
#include "data/corpus/loader.h"
#include "model/core/trainer.h"

struct report {
    FILE *out;
    bool terminal;        /* lines scroll above a bar that is redrawn */
    bool bar_visible;     /* the cursor stands behind it */
    int64_t first_step;   /* of this process, for the ETA */
    int64_t steps, every; /* of the config */
    double started;       /* on progress_clock() */
    double deadline;      /* likewise, by train.minutes; 0: none */
    bool scale_loss;
    double floor; /* nats per token that no model can beat; 0: unknown */
};

/* began: when the program did, on progress_clock(). */
void report_open(struct report *report, FILE *out, const struct trainer *trainer, double began,
                 double floor);

/* Everything worth knowing before the first step. train and val are NULL where there are none. */
void report_banner(struct report *report, const struct trainer *trainer, const struct loader *train,
                   const struct loader *val, const char *run_directory);

/* The memory plan alone: bytes by part. */
void report_memory(FILE *out, const struct memory_plan *plan);

/* Prints a line every `every` steps and at the last one; on a terminal, then redraws the bar. */
void report_step(struct report *report, const struct step_report *step, double step_ms,
                 double tokens_per_s);
void report_validation(struct report *report, int64_t step, double loss);

/* Whether train.minutes are over. */
bool report_out_of_time(const struct report *report);

/* Makes room for text of others: ends or wipes the bar. */
void report_pause(struct report *report);

/* At the end: the part of the time in which rank 0 had nothing to do until data of others came.
 * Nothing where there are no others, or where devices wait instead. */
void report_waited(const struct report *report, const struct trainer *trainer);
