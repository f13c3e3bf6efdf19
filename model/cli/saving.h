/* When the checkpoints of a run are written: in the background where that is wanted and there is
 * memory for it, else at once. What became of them is said on standard output and error. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"
#include "model/io/checkpoint_writer.h"
#include "model/cli/report.h"
#include "model/core/trainer.h"

struct saving {
    struct report *report;
    struct checkpoint_writer writer;
    int64_t saved; /* step of the newest checkpoint that is complete, or where training began */
    int64_t begun; /* step of the checkpoint that is being written, or -1 */
    int64_t count; /* checkpoints before the last step */
    int64_t lost;  /* step since which the loss is not finite, or 0 */
    bool warned;   /* about it */
    double stopped, writing; /* seconds that training paused, and that writing took */
};

/* Before training: fails if the disk has no room for one checkpoint more, and warns if it has none
 * for all that the run will keep, beside the one that is written before the oldest is removed. */
int saving_check_room(const struct trainer *trainer, const char *directory, struct error *error);

/* After the weights were loaded. directory and the rest stay the caller's. */
void saving_open(struct saving *saving, struct trainer *trainer, struct report *report,
                 const char *directory);
/* Waits for the checkpoint under way. */
void saving_close(struct saving *saving);

/* Takes note of the loss of a step, or of a validation after it. While it is not finite nothing is
 * saved, so that the last good checkpoint stands; the first time there is a warning. */
void saving_watch(struct saving *saving, int64_t step, double loss);

/* Saves the settled trainer, once the checkpoint before is written; after the last step it leaves
 * that to saving_finish. Fails, with checkpoint.on_error "stop", when this or the one before cannot
 * be. */
int saving_save(struct saving *saving, struct error *error);

/* After each step: whether a checkpoint is being written, by this rank. */
bool saving_goes_on(struct saving *saving);

/* Comes to the end of the checkpoint under way, if there is one, and says what has become of it. It
 * waits only if that goes on. All ranks call it. Fails as saving_save. */
int saving_end(struct saving *saving, struct error *error);

/* What saving before the end has cost, a line if there was any. */
void saving_report(FILE *out, const struct saving *saving);

/* At the end, of a settled trainer: waits for the checkpoint under way, and saves what is newer
 * than it. Fails if that cannot be. */
int saving_finish(struct saving *saving, struct error *error);
