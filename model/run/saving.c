#include "model/run/saving.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "data/base/progress.h"
#include "kernels/ranks/collectives.h"
#include "model/files/checkpoint.h"

void saving_open(struct saving *saving, struct trainer *trainer, struct report *report,
                 const char *directory) {
    struct error reason;
    saving->trainer = trainer;
    saving->report = report;
    saving->directory = directory;
    saving->saved = trainer->state.step;
    saving->begun = -1;
    if (!snapshot_wanted(trainer->config) || trainer->be->collectives->ranks->size > 1) return;
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

static int go_on(struct saving *saving, bool wait, struct error *error) {
    char path[FILE_PATH_MAX];
    if (saving->begun < 0) return 0;
    int status = background_go_on(&saving->background, wait, path, error);
    if (status == RESULT_NONE) return 0;
    int64_t step = saving->begun;
    saving->begun = -1;
    saving->writing += saving->background.seconds;
    return tell(saving, status, step, path, error);
}

int saving_go_on(struct saving *saving, struct error *error) {
    return go_on(saving, false, error);
}

/* A run that ends for another reason still has the checkpoint that was under way. */
void saving_close(struct saving *saving) {
    struct error error;
    if (saving->begun > 0 && go_on(saving, true, &error))
        fprintf(stderr, "warning: step %" PRId64 " was not saved: %s\n", saving->begun, error.text);
    background_close(&saving->background);
}

static int begin(struct saving *saving, struct error *error) {
    if (go_on(saving, true, error)) return -1;
    saving->begun = saving->trainer->state.step;
    background_begin(&saving->background, saving->trainer);
    return go_on(saving, false, error);
}

static int save_now(struct saving *saving, bool last, struct error *error) {
    char path[FILE_PATH_MAX];
    double began = progress_clock();
    int status = checkpoint_save(saving->trainer, saving->directory, path, error);
    if (!last) saving->writing += progress_clock() - began;
    if (last && status < 0) return -1;
    return tell(saving, status, saving->trainer->state.step, path, error);
}

int saving_save(struct saving *saving, struct error *error) {
    const struct trainer *trainer = saving->trainer;
    if (trainer->state.step >= trainer->config->train.steps) return 0; /* saving_finish follows */
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
            "%" PRId64 " checkpoint%s on the way: training stopped for %.3f s, writing took "
            "%.3f s\n",
            saving->count, saving->count > 1 ? "s" : "", saving->stopped, saving->writing);
}

int saving_finish(struct saving *saving, struct error *error) {
    if (go_on(saving, false, error)) return -1;
    if (saving->begun >= 0) {
        report_pause(saving->report);
        fprintf(stderr, "waiting until the checkpoint of step %" PRId64 " is written\n",
                saving->begun);
        if (go_on(saving, true, error)) return -1;
    }
    return saving->saved < saving->trainer->state.step ? save_now(saving, true, error) : 0;
}
