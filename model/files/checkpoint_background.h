/* Saving while training goes on: a snapshot (model/snapshot.h) is taken between two steps, and a
 * thread writes the checkpoint from it, the same files byte for byte as checkpoint_save.
 *
 *     training   step 99 | snapshot | step 100 | step 101 | step 102 | ...
 *     thread                        | hash, write, sync, rename, remove older ones |
 *
 * At most one is under way. Where ranks train together each writes what is its own, as
 * checkpoint_save has it; they begin together and come to the end together. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "data/base/error.h"
#include "data/base/files.h"
#include "model/files/checkpoint_together.h"
#include "model/snapshot.h"

struct background_save {
    struct snapshot snapshot;
    const struct ranks *ranks;
    struct gathered_moments moments; /* of several ranks */
    enum { BACKGROUND_IDLE, BACKGROUND_COPIES, BACKGROUND_WRITES } phase;
    pthread_t thread;  /* while it writes */
    bool threaded;     /* there is one */
    atomic_bool ended; /* the thread is at its end: what it leaves is below */
    char run_directory[FILE_PATH_MAX];
    char path[FILE_PATH_MAX];
    struct stored_file *files; /* stb_ds array: rank 0's, of several ranks */
    int status;                /* of checkpoint_write; of several ranks, of this one's part */
    double seconds;            /* that it took */
    struct error error;
};

/* Takes the memory for it. Returns RESULT_NONE, with the reason, where there is not enough; on all
 * ranks if on one. */
int background_open(struct background_save *save, const struct trainer *trainer,
                    const char *run_directory, struct error *error);

/* Waits for what this rank writes. */
void background_close(struct background_save *save);

static inline bool background_is_open(const struct background_save *save) {
    return save->snapshot.be != NULL;
}

/* Begins a checkpoint of the trainer as it is between two steps. None may be under way. Fails
 * without having begun one, on all ranks. */
int background_begin(struct background_save *save, struct trainer *trainer, struct error *error);

/* Between steps: starts writing once the copy is there. Returns whether this rank still writes. */
bool background_goes_on(struct background_save *save);

/* Comes to the end of the checkpoint that is under way: waits until it is written. All ranks call
 * it. Returns what checkpoint_save would have returned, with path and message; RESULT_NONE if there
 * is none. */
int background_end(struct background_save *save, char path[FILE_PATH_MAX], struct error *error);
