#include "model/run/saving.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data/base/progress.h"
#include "model/files/checkpoint.h"

int saving_check_room(const struct trainer *trainer, const char *directory, struct error *error) {
    const struct config *config = trainer->config;
    struct error warning;
    int64_t left = config->train.steps - trainer->state.step, every = config->checkpoint.every;
    int64_t count = every > 0 ? (left + every - 1) / every : 1, keep = config->checkpoint.keep;
    int64_t held = checkpoint_directory_count(directory), more = held < keep ? keep + 1 - held : 1;
    if (left <= 0) return 0;
    if (config->checkpoint.keep_best) count = ++more; /* how many are the best is not known */
    if (checkpoint_check_room(trainer, directory, 1, error)) return -1;
    if (checkpoint_check_room(trainer, directory, count < more ? count : more, &warning))
        fprintf(stderr, "warning: %s\n", warning.text);
    return 0;
}

void saving_open(struct saving *saving, struct trainer *trainer, struct report *report,
                 const char *directory) {
    struct error reason;
    saving->trainer = trainer;
    saving->report = report;
    saving->directory = directory;
    saving->saved = trainer->state.step;
    saving->begun = -1;
    if (!snapshot_wanted(trainer->config)) return;
    if (background_open(&saving->background, trainer, directory, &reason) == 0) return;
    fprintf(stderr, "note: training waits while checkpoints are written: %s\n", reason.text);
}

/* Says what a checkpoint of that step has become. Returns -1, with the message, if the run has to
 * end for it. */
static int tell(struct saving *saving, int status, int64_t step, const char *path,
                struct error *error) {
    bool stops = saving->trainer->config->checkpoint.on_error == CONFIG_ON_ERROR_STOP;
    if (status < 0 && stops) return -1;
    report_pause(saving->report);
    if (status < 0)
        fprintf(stderr, "warning: step %" PRId64 " was not saved: %s\n", step, error->text);
    if (status == RESULT_WARNED) fprintf(stderr, "warning: %s\n", error->text);
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
    int status = background_end(&saving->background, path, error);
    saving->begun = -1;
    saving->writing += saving->background.seconds;
    return tell(saving, status, step, path, error);
}

bool saving_goes_on(struct saving *saving) {
    return saving->begun >= 0 && background_goes_on(&saving->background);
}

/* A run that ends for another reason still has the checkpoint that was under way. */
void saving_close(struct saving *saving) {
    struct error error;
    int64_t step = saving->begun;
    if (step > 0 && saving_end(saving, &error))
        fprintf(stderr, "warning: step %" PRId64 " was not saved: %s\n", step, error.text);
    background_close(&saving->background);
}

static int begin(struct saving *saving, struct error *error) {
    int64_t step = saving->trainer->state.step;
    if (saving_end(saving, error)) return -1;
    if (background_begin(&saving->background, saving->trainer, error))
        return tell(saving, -1, step, "", error);
    saving->begun = step;
    saving_goes_on(saving);
    return 0;
}

static int save_now(struct saving *saving, bool last, struct error *error) {
    char path[FILE_PATH_MAX];
    double began = progress_clock();
    int status = checkpoint_save(saving->trainer, saving->directory, path, error);
    if (!last) saving->writing += progress_clock() - began;
    if (last && status < 0) return -1;
    return tell(saving, status, saving->trainer->state.step, path, error);
}

void saving_watch(struct saving *saving, int64_t step, double loss) {
    if (isfinite(loss)) saving->lost = 0;
    else if (saving->lost == 0) saving->lost = step;
    if (saving->lost == 0 || saving->warned) return;
    report_pause(saving->report);
    fprintf(stderr,
            "warning: loss is not finite since step %" PRId64 ": lower optimizer.lr, or raise "
            "optimizer.warmup_steps; no checkpoint is saved meanwhile\n",
            step);
    saving->warned = true;
}

static int refuse_lost(const struct saving *saving, struct error *error) {
    return fail(error,
                "step %" PRId64 " was not saved: its loss is not finite, since step %" PRId64
                "\ncontinue from the last checkpoint, if there is one, with a lower optimizer.lr",
                saving->trainer->state.step, saving->lost);
}

int saving_save(struct saving *saving, struct error *error) {
    const struct trainer *trainer = saving->trainer;
    if (trainer->state.step >= trainer->config->train.steps) return 0; /* saving_finish follows */
    if (saving->lost) return 0;
    double began = progress_clock();
    int status = background_is_open(&saving->background) ? begin(saving, error)
                                                         : save_now(saving, false, error);
    saving->stopped += progress_clock() - began;
    saving->count++;
    return status;
}

void saving_report(FILE *out, const struct saving *saving) {
    if (saving->count == 0) return;
    fprintf(out,
            "saving %" PRId64 " checkpoint%s paused training for %.3f s; writing took %.3f s\n",
            saving->count, saving->count > 1 ? "s" : "", saving->stopped, saving->writing);
}

int saving_finish(struct saving *saving, struct error *error) {
    /* Nobody need be told of a moment. */
    for (int i = 0; i < 30 && saving_goes_on(saving); i++) usleep(10000);
    if (saving_goes_on(saving)) {
        report_pause(saving->report);
        fprintf(stderr, "waiting until the checkpoint of step %" PRId64 " is written\n",
                saving->begun);
    }
    if (saving_end(saving, error)) return -1;
    if (saving->saved == saving->trainer->state.step) return 0;
    return saving->lost ? refuse_lost(saving, error) : save_now(saving, true, error);
}
