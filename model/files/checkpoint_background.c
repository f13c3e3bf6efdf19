#include "model/files/checkpoint_background.h"

#include <signal.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/base/progress.h"
#include "kernels/ranks/collectives.h"
#include "model/files/checkpoint.h"

int background_open(struct background_save *save, const struct trainer *trainer,
                    const char *run_directory, struct error *error) {
    save->ranks = trainer->be->collectives->ranks;
    save->phase = BACKGROUND_IDLE;
    snprintf(save->run_directory, sizeof save->run_directory, "%s", run_directory);
    int status = snapshot_open(&save->snapshot, trainer, error);
    if (save->ranks->size > 1 && status == 0)
        status = gathered_moments_open(&save->moments, &trainer->optimizer,
                                       checkpoint_file_bytes(trainer), error);
    if (ranks_agree(save->ranks, status ? -1 : 0, error) == 0) return 0;
    background_close(save);
    return RESULT_NONE;
}

void background_close(struct background_save *save) {
    if (save->phase == BACKGROUND_WRITES && save->threaded) pthread_join(save->thread, NULL);
    gathered_moments_close(&save->moments);
    snapshot_close(&save->snapshot);
    arrfree(save->files);
    save->phase = BACKGROUND_IDLE;
}

int background_begin(struct background_save *save, struct trainer *trainer, struct error *error) {
    exchange_masters(&trainer->optimizer.exchange);
    if (save->ranks->size > 1) {
        if (checkpoint_begin(save->path, trainer, save->run_directory, error) ||
            gathered_moments_fill(&save->moments, error))
            return -1;
    }
    snapshot_take(&save->snapshot, trainer);
    save->phase = BACKGROUND_COPIES;
    return 0;
}

/* What this rank has to write of a checkpoint of several. */
static int write_part(struct background_save *save) {
    arrsetlen(save->files, 0);
    if (save->ranks->rank == 0 &&
        checkpoint_write_model(&save->snapshot.state, &save->files, save->path, &save->error))
        return -1;
    return gathered_moments_write(&save->moments, save->path, &save->error);
}

static void *write_snapshot(void *argument) {
    struct background_save *save = argument;
    double began = progress_clock();
    save->status = save->ranks->size > 1
                       ? write_part(save)
                       : checkpoint_write(&save->snapshot.state, save->run_directory, save->path,
                                          &save->error);
    save->seconds = progress_clock() - began;
    atomic_store(&save->ended, true);
    return NULL;
}

/* Signals are for the main thread. Where no thread can be had, this one writes. */
static void start_writing(struct background_save *save) {
    sigset_t all, before;
    const struct error *failure = &save->snapshot.be->failure;
    save->error.text[0] = 0;
    save->seconds = 0;
    save->threaded = false;
    save->phase = BACKGROUND_WRITES;
    if (failure->text[0]) {
        save->status = fail(&save->error, "%s", failure->text);
        atomic_store(&save->ended, true);
        return;
    }
    atomic_store(&save->ended, false);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    save->threaded = pthread_create(&save->thread, NULL, write_snapshot, save) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!save->threaded) write_snapshot(save);
}

static void go_on(struct background_save *save, bool wait) {
    if (save->phase == BACKGROUND_COPIES && snapshot_there(&save->snapshot, wait))
        start_writing(save);
}

bool background_goes_on(struct background_save *save) {
    go_on(save, false);
    return save->phase == BACKGROUND_COPIES ||
           (save->phase == BACKGROUND_WRITES && !atomic_load(&save->ended));
}

/* The rest of what several ranks write. */
static int end_together(struct background_save *save) {
    struct checkpoint_ending ending = {&save->snapshot.state, save->ranks, save->run_directory,
                                       NULL, save->status};
    if (gathered_moments_list(&save->moments, save->path, &save->files, &save->error))
        ending.status = -1;
    ending.files = save->files;
    return checkpoint_end(&ending, save->path, &save->error);
}

int background_end(struct background_save *save, char path[FILE_PATH_MAX], struct error *error) {
    go_on(save, true);
    if (save->phase == BACKGROUND_IDLE) return RESULT_NONE;
    if (save->threaded) pthread_join(save->thread, NULL);
    save->phase = BACKGROUND_IDLE;
    int status = save->ranks->size > 1 ? end_together(save) : save->status;
    memcpy(path, save->path, FILE_PATH_MAX);
    if (status) *error = save->error;
    return status;
}
