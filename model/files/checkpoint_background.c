#include "model/files/checkpoint_background.h"

#include <signal.h>
#include <string.h>

#include "data/base/progress.h"
#include "model/files/checkpoint.h"

int background_open(struct background_save *save, const struct trainer *trainer,
                    const char *run_directory, struct error *error) {
    snprintf(save->run_directory, sizeof save->run_directory, "%s", run_directory);
    save->phase = BACKGROUND_IDLE;
    return snapshot_open(&save->snapshot, trainer, error);
}

void background_begin(struct background_save *save, struct trainer *trainer) {
    exchange_masters(&trainer->optimizer.exchange);
    snapshot_take(&save->snapshot, trainer);
    save->phase = BACKGROUND_COPIES;
}

static void *write_snapshot(void *argument) {
    struct background_save *save = argument;
    double began = progress_clock();
    save->status =
        checkpoint_write(&save->snapshot.state, save->run_directory, save->path, &save->error);
    save->seconds = progress_clock() - began;
    atomic_store(&save->ended, true);
    return NULL;
}

/* Signals are for the main thread. Where no thread can be had, this one writes. */
static void start_writing(struct background_save *save) {
    sigset_t all, before;
    sigfillset(&all);
    save->error.text[0] = 0;
    atomic_store(&save->ended, false);
    save->phase = BACKGROUND_WRITES;
    pthread_sigmask(SIG_SETMASK, &all, &before);
    save->threaded = pthread_create(&save->thread, NULL, write_snapshot, save) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!save->threaded) write_snapshot(save);
}

int background_go_on(struct background_save *save, bool wait, char path[FILE_PATH_MAX],
                     struct error *error) {
    const struct error *failure = &save->snapshot.be->failure;
    if (save->phase == BACKGROUND_COPIES && snapshot_there(&save->snapshot, wait)) {
        save->phase = BACKGROUND_IDLE;
        if (failure->text[0]) return fail(error, "%s", failure->text);
        start_writing(save);
    }
    if (save->phase != BACKGROUND_WRITES) return RESULT_NONE;
    if (!wait && !atomic_load(&save->ended)) return RESULT_NONE;
    if (save->threaded) pthread_join(save->thread, NULL);
    save->phase = BACKGROUND_IDLE;
    memcpy(path, save->path, FILE_PATH_MAX);
    if (save->status) *error = save->error;
    return save->status;
}

void background_close(struct background_save *save) {
    char path[FILE_PATH_MAX];
    struct error ignored;
    if (!background_is_open(save)) return;
    background_go_on(save, true, path, &ignored);
    snapshot_close(&save->snapshot);
}
