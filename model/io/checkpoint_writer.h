/* Writes the checkpoints of a run, one at a time.
 *
 *     training   step 99 | begin: copy | step 100 | step 101 | step 102 | end
 *     thread                           | hash, write, sync, rename, remove older ones |
 *
 * _begin copies weights, moments and state to a snapshot (model/optimize/snapshot.h), which a
 * thread writes while training continues. Without memory for a snapshot, _begin writes the same
 * files, byte for byte, from the live tensors, and training waits.
 *
 * All ranks begin and end a checkpoint together. In between each rank writes its own files: every
 * rank writes moments (checkpoint_moments.h), rank 0 all others. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/util/files.h"
#include "model/io/checkpoint_moments.h"
#include "model/optimize/snapshot.h"
#include "model/optimize/trainer.h"

struct checkpoint_writer {
    struct trainer *trainer;
    const struct ranks *ranks;
    const char *run_directory;
    FILE *notes;              /* stderr once open (note.h) */
    struct snapshot snapshot; /* if not open, training waits */
    enum { CHECKPOINT_NONE, CHECKPOINT_COPYING, CHECKPOINT_WRITING } phase;
    /* The checkpoint that is being written: */
    const struct snapshot *source; /* NULL: the live tensors */
    struct training_state state;
    struct moment_files moments;
    struct stored_file *files; /* stb_ds array; on rank 0 it finally has all files */
    char path[FILE_PATH_MAX];
    pthread_t thread;
    bool threaded;     /* the thread must be joined */
    atomic_bool ended; /* this rank has written its files */
    int status;        /* status of this rank; the message is in error */
    bool warned;       /* all is saved; error says why an older checkpoint was not removed */
    double seconds;    /* duration of the writing */
    struct error error;
};

/* Opens a writer without a snapshot. The caller keeps owning the trainer and the string. */
void checkpoint_writer_open(struct checkpoint_writer *writer, struct trainer *trainer,
                            const char *run_directory);
/* Allocates memory for a snapshot. Returns RESULT_NONE, with the reason, if any rank has too
 * little. */
int checkpoint_writer_open_snapshot(struct checkpoint_writer *writer, struct error *error);
/* Waits for the files that this rank writes. */
void checkpoint_writer_close(struct checkpoint_writer *writer);

/* Begins a checkpoint in the run directory (created if missing), between two steps. All ranks call
 * it while no checkpoint is being written. It fails on all ranks if it fails on one; then no
 * checkpoint is being written. */
int checkpoint_writer_begin(struct checkpoint_writer *writer, struct error *error);

/* Starts writing once the copy is complete; call it between steps. True while this rank writes. */
bool checkpoint_writer_busy(struct checkpoint_writer *writer);

/* Waits for the checkpoint that is being written, and stores its path. All ranks call it. Warns
 * if an older checkpoint could not be removed. Returns 0; RESULT_NONE if none is being written; -1
 * with a message, on all ranks, if it was not saved. */
int checkpoint_writer_end(struct checkpoint_writer *writer, char path[FILE_PATH_MAX],
                          struct error *error);

/* Fails if the file system of the run has too little space for `count` more checkpoints. The
 * message has the sizes. */
int checkpoint_check_disk_space(const struct trainer *trainer, const char *run_directory,
                                int64_t count, struct error *error);
