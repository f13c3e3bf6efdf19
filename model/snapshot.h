/* A copy of what a checkpoint is written from, in memory of the host: weights, moments, the history
 * of fp8. It is taken between two steps and stays as it was while training goes on.
 *
 * On a CPU the copy is done when snapshot_take returns: 12 bytes per parameter at the speed of
 * memory. (A forked process would share the pages instead. Measured with 1.5 GB: the copy stops
 * training for 0.12 s; after a fork of 0.02 s the next update takes 4.5 s longer, page by page.) On
 * a GPU the copy runs beside the next forward and backward pass; the update waits for its end. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "data/base/error.h"
#include "kernels/arena.h"
#include "model/trainer.h"

struct snapshot {
    struct backend *be;     /* of the training; NULL: not open */
    struct backend host;    /* that the copy is read with */
    struct masters masters; /* of the copy, likewise the next two */
    struct tensor moments[2];
    float *history;
    void *memory;
    size_t bytes;
    pthread_t toucher;    /* gets the pages of the memory while the first steps go on */
    bool touching;        /* it has to be joined */
    struct trainer state; /* the copy as a trainer, for those who write it; it cannot train */
};

/* Whether a run saves before its end, and in the background. */
bool snapshot_wanted(const struct config *config);

/* Bytes that a snapshot of this trainer takes, which need not have memory itself. Of several ranks
 * the first has the weights; moments are gathered apart (checkpoint_together.h). */
size_t snapshot_bytes(const struct trainer *trainer);

/* Adds what saving takes to the plan of an open trainer, if its run wants it. */
void snapshot_plan(struct trainer *trainer);

/* Takes the memory. Returns RESULT_NONE, with the reason, where there is not enough left for it,
 * and for what several ranks gather of their moments. The trainer stays the caller's. */
int snapshot_open(struct snapshot *snapshot, const struct trainer *trainer, struct error *error);
void snapshot_close(struct snapshot *snapshot);

/* Begins the copy, between two steps, when the one before is no longer read. */
void snapshot_take(struct snapshot *snapshot, const struct trainer *trainer);

/* Whether the copy is complete, so that snapshot->state may be read; with wait it is. */
bool snapshot_there(const struct snapshot *snapshot, bool wait);
