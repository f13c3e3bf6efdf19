#include "model/cli/saving.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data/util/min_max.h"
#include "data/util/note.h"
#include "data/util/progress.h"
#include "model/io/checkpoint.h"

int saving_check_disk_space(const struct trainer *trainer, const char *directory,
                            struct error *error) {
    const struct config *config = trainer->config;
    struct error warning;
    int64_t left = config->train.steps - trainer->state.step, every = config->checkpoint.every;
    int64_t count = every > 0 ? (left + every - 1) / every : 1, keep = config->checkpoint.keep;
    int64_t held = checkpoint_directory_count(directory), more = held < keep ? keep + 1 - held : 1;
    if (left <= 0) return 0;
    if (config->checkpoint.keep_best) count = ++more; /* the number of best ones is unknown */
    if (checkpoint_check_disk_space(trainer, directory, 1, error)) return -1;
    if (checkpoint_check_disk_space(trainer, directory, MIN(count, more), &warning))
        note_error(stderr, "warning", &warning);
    return 0;
}

void saving_open(struct saving *saving, struct trainer *trainer, struct report *report,
                 const char *directory) {
    struct error reason;
    saving->report = report;
    saving->saved = trainer->state.step;
    saving->begun = -1;
    checkpoint_writer_open(&saving->writer, trainer, directory);
    if (snapshot_wanted(trainer->config) &&
        checkpoint_writer_open_snapshot(&saving->writer, &reason))
        note(stderr, "note", "training waits while checkpoints are written: %s", reason.text);
}

void saving_warn(int64_t step, const struct error *error) {
    note(stderr, "warning", "step %" PRId64 " was not saved: %s", step, error->text);
}

/* Reports the outcome of a checkpoint. Returns -1, with the message, if the run has to end. */
static int report_outcome(struct saving *saving, int status, int64_t step, const char *path,
                          struct error *error) {
    const struct config *config = saving->writer.trainer->config;
    if (status < 0 && config->checkpoint.on_error == CONFIG_ON_ERROR_STOP) return -1;
    report_pause(saving->report);
    if (status < 0) saving_warn(step, error);
    error->text[0] = 0;
    if (status < 0) return 0;
    saving->saved = step;
    printf("saved %s\n", path);
    fflush(stdout);
    return 0;
}

int saving_end(struct saving *saving, struct error *error) {
    char path[FILE_PATH_MAX];
    if (saving->begun < 0) return 0;
    int64_t step = saving->begun;
    report_pause(saving->report);
    int status = checkpoint_writer_end(&saving->writer, path, error);
    saving->begun = -1;
    saving->writing_seconds += saving->writer.seconds;
    return report_outcome(saving, status, step, path, error);
}

bool saving_in_progress(struct saving *saving) {
    return saving->begun >= 0 && checkpoint_writer_busy(&saving->writer);
}

/* After an error the run still completes the checkpoint that is being written. */
void saving_close(struct saving *saving) {
    struct error error;
    int64_t step = saving->begun;
    if (step > 0 && saving_end(saving, &error)) saving_warn(step, &error);
    checkpoint_writer_close(&saving->writer);
}

static void watch(struct saving *saving, int64_t step, double loss) {
    if (isfinite(loss)) return;
    if (saving->not_finite_since == 0) saving->not_finite_since = step;
    if (saving->warned) return;
    report_pause(saving->report);
    note(stderr, "warning",
         "loss is not finite since step %" PRId64
         ": lower optimizer.lr, or raise optimizer.warmup_steps; no checkpoint is saved meanwhile",
         step);
    saving->warned = true;
}

void saving_watch_step(struct saving *saving, int64_t step, double loss) {
    if (isfinite(loss)) saving->not_finite_since = 0;
    watch(saving, step, loss);
}

void saving_watch_validation(struct saving *saving, int64_t step, double loss) {
    if (isfinite(loss)) saving->validated = step;
    watch(saving, step, loss);
}

static int refuse_not_finite(const struct saving *saving, struct error *error) {
    return fail(error,
                "step %" PRId64 " was not saved: its loss is not finite, since step %" PRId64
                "\ncontinue from the last checkpoint, if there is one, with a lower optimizer.lr",
                saving->writer.trainer->state.step, saving->not_finite_since);
}

/* Without a snapshot checkpoint_writer_begin writes the checkpoint before it returns. */
static int save(struct saving *saving, struct error *error) {
    int64_t step = saving->writer.trainer->state.step;
    if (saving_end(saving, error)) return -1;
    if (checkpoint_writer_begin(&saving->writer, error))
        return report_outcome(saving, -1, step, "", error);
    saving->begun = step;
    return saving->writer.source ? 0 : saving_end(saving, error);
}

int saving_save(struct saving *saving, struct error *error) {
    const struct trainer *trainer = saving->writer.trainer;
    if (trainer->state.step >= trainer->config->train.steps) {
        saving->saved = -1; /* saving_finish follows, also if the run resumed from this step */
        return 0;
    }
    if (saving->not_finite_since) return 0;
    double began = progress_clock();
    int status = save(saving, error);
    saving->paused_seconds += progress_clock() - began;
    saving->count++;
    return status;
}

void saving_report(FILE *out, const struct saving *saving) {
    if (saving->count == 0) return;
    fprintf(out,
            "saving %" PRId64 " checkpoint%s paused training for %.3f s; writing took %.3f s\n",
            saving->count, saving->count > 1 ? "s" : "", saving->paused_seconds,
            saving->writing_seconds);
}

int saving_finish(struct saving *saving, struct error *error) {
    struct trainer *trainer = saving->writer.trainer;
    int64_t step = trainer->state.step;
    char path[FILE_PATH_MAX];
    /* A wait of less than 0.3 s is not reported. */
    for (int i = 0; i < 30 && saving_in_progress(saving); i++) usleep(10000);
    if (saving_in_progress(saving)) {
        report_pause(saving->report);
        note(stderr, "note", "waiting until the checkpoint of step %" PRId64 " is written",
             saving->begun);
    }
    if (saving_end(saving, error)) return -1;
    if (saving->saved == step) return 0;
    /* Steps without finite gradients leave the weights, which a validation may have found good. */
    if (saving->not_finite_since && saving->validated != step)
        return refuse_not_finite(saving, error);
    int status = checkpoint_save(trainer, saving->writer.run_directory, path, error);
    return status < 0 ? -1 : report_outcome(saving, status, step, path, error);
}
