#include "model/run/saving.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/files/checkpoint.h"

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

static int go_on(struct saving *saving, bool wait, struct error *error) {
    char path[FILE_PATH_MAX];
    if (saving->begun < 0) return 0;
    int status = background_go_on(&saving->background, wait, path, error);
    if (status == RESULT_NONE) return 0;
    int64_t step = saving->begun;
    saving->begun = -1;
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

int saving_save(struct saving *saving, struct error *error) {
    char path[FILE_PATH_MAX];
    int64_t step = saving->trainer->state.step;
    if (step >= saving->trainer->config->train.steps) return 0; /* saving_finish follows */
    if (go_on(saving, true, error)) return -1;
    if (background_is_open(&saving->background)) {
        background_begin(&saving->background, saving->trainer);
        saving->begun = step;
        return go_on(saving, false, error);
    }
    int status = checkpoint_save(saving->trainer, saving->directory, path, error);
    return tell(saving, status, step, path, error);
}

int saving_finish(struct saving *saving, struct error *error) {
    char path[FILE_PATH_MAX];
    int64_t step = saving->trainer->state.step;
    if (go_on(saving, false, error)) return -1;
    if (saving->begun >= 0) {
        report_pause(saving->report);
        fprintf(stderr, "waiting until the checkpoint of step %" PRId64 " is written\n",
                saving->begun);
        if (go_on(saving, true, error)) return -1;
    }
    if (saving->saved >= step) return 0;
    int status = checkpoint_save(saving->trainer, saving->directory, path, error);
    return status < 0 ? -1 : tell(saving, status, step, path, error);
}
