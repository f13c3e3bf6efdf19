/* Saving while training goes on: a snapshot (model/snapshot.h) is taken between two steps, and a
 * thread writes the checkpoint from it, the same files byte for byte as checkpoint_save.
 *
 *     training   step 99 | snapshot | step 100 | step 101 | step 102 | ...
 *     thread                        | hash, write, sync, rename, remove older ones |
 *
 * At most one is under way. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "data/base/error.h"
#include "data/base/files.h"
#include "model/snapshot.h"

struct background_save {
    struct snapshot snapshot;
    enum { BACKGROUND_IDLE, BACKGROUND_COPIES, BACKGROUND_WRITES } phase;
    pthread_t thread;  /* while it writes */
    bool threaded;     /* there is one */
    atomic_bool ended; /* the thread is at its end: what it leaves is below */
    char run_directory[FILE_PATH_MAX];
    char path[FILE_PATH_MAX];
    int status;     /* of checkpoint_write */
    double seconds; /* that it took */
    struct error error;
};

/* Takes the memory for it. Returns RESULT_NONE, with the reason, where there is not enough. */
int background_open(struct background_save *save, const struct trainer *trainer,
                    const char *run_directory, struct error *error);

/* Waits for what is under way. */
void background_close(struct background_save *save);

static inline bool background_is_open(const struct background_save *save) {
    return save->snapshot.be != NULL;
}

/* Begins a checkpoint of the trainer as it is between two steps. None may be under way. */
void background_begin(struct background_save *save, struct trainer *trainer);

/* Between steps: goes on with the checkpoint that is under way, or with wait comes to its end.
 * Returns RESULT_NONE if it is not at its end, or there is none; once, when it is, what
 * checkpoint_save would have returned, with path and message. */
int background_go_on(struct background_save *save, bool wait, char path[FILE_PATH_MAX],
                     struct error *error);
