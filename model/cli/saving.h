/* Schedules the checkpoints of a run. They are written in the background if the config allows it
 * and memory suffices, else while training waits. The outcome is reported on standard output and
 * error. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"
#include "model/cli/report.h"
#include "model/io/checkpoint_writer.h"
#include "model/optimize/trainer.h"

struct saving {
    struct report *report;
    struct checkpoint_writer writer;
    int64_t saved; /* step of the newest complete checkpoint, or of the start; -1: outdated */
    int64_t begun; /* step of the checkpoint being written, or -1 */
    int64_t count; /* number of checkpoints before the last step */
    /* First step since the last finite loss of a step; 0: none. */
    int64_t not_finite_since;
    int64_t validated;      /* step of the last validation with a finite loss */
    bool warned;            /* the warning about such losses has been printed */
    double paused_seconds;  /* time that training waited for saving */
    double writing_seconds; /* time spent writing, mostly in the background */
};

/* Checks the disk before training. Fails without space for one more checkpoint. Warns without space
 * for all that the run keeps, plus the one written before the oldest is removed. */
int saving_check_disk_space(const struct trainer *trainer, const char *directory,
                            struct error *error);

/* Starts saving after the weights are loaded. The caller keeps ownership of all arguments. */
void saving_open(struct saving *saving, struct trainer *trainer, struct report *report,
                 const char *directory);
/* Completes the checkpoint being written, then frees the writer. */
void saving_close(struct saving *saving);

/* Record the loss of a step, and of a validation after it. From a loss that is not finite until a
 * step with a finite one no checkpoint is saved, so that the last good one stays the newest; but
 * that of the last step is, if its validation has a finite loss. The first loss that is not finite
 * prints a warning. */
void saving_watch_step(struct saving *saving, int64_t step, double loss);
void saving_watch_validation(struct saving *saving, int64_t step, double loss);

/* Saves the settled trainer after completing the previous checkpoint. Does nothing at the last
 * step, which saving_finish saves. With checkpoint.on_error "stop", fails if this or the previous
 * checkpoint cannot be written. */
int saving_save(struct saving *saving, struct error *error);

/* True if this rank is writing a checkpoint in the background. */
bool saving_in_progress(struct saving *saving);

/* Completes the checkpoint being written, if there is one, and reports its outcome; waits if the
 * background write is still in progress. All ranks call it. Fails like saving_save. */
int saving_end(struct saving *saving, struct error *error);

/* Prints a warning that this step was not saved, with the reason. */
void saving_warn(int64_t step, const struct error *error);

/* Prints the time that saving took before the last step, if anything was saved. */
void saving_report(FILE *out, const struct saving *saving);

/* Completes the checkpoint being written, then saves the settled trainer if it is newer. Called at
 * the end of a run. */
int saving_finish(struct saving *saving, struct error *error);
