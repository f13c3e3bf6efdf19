/* Memory of the host for a copy of what a checkpoint is written from: weights, moments, and the
 * history of fp8. The copy is taken between two steps and does not change while training goes on.
 *
 * On a CPU the copy is complete when snapshot_take returns: 12 bytes per parameter at the speed of
 * memory. (A forked process would share the pages instead. Measured with 1.5 GB: the copy stops
 * training for 0.12 s; after a fork of 0.02 s the next update takes 4.5 s longer, page by page.) On
 * a GPU the copy runs beside the next forward and backward pass; the update waits for its end. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "data/util/error.h"
#include "kernels/arena.h"
#include "model/core/trainer.h"

struct snapshot {
    struct backend *be;     /* of the training; NULL: not open */
    struct masters masters; /* [of rank 0] to be read without a backend; no groups elsewhere */
    float *history;         /* [of rank 0] [history_length, count], as in struct quantization */
    char *moments;          /* for the caller to fill, by snapshot_add or itself */
    void *memory;
    size_t bytes;
    struct transfer *ranges; /* stb_ds array: what snapshot_take copies */
    pthread_t toucher;       /* touches the pages of the memory while the first steps run */
    bool touching;           /* the thread has to be joined */
};

/* True if a run saves before its end, and in the background. */
bool snapshot_wanted(const struct config *config);

/* Adds the memory for a snapshot to the plan of an open trainer, if its run wants one. */
void snapshot_plan(struct trainer *trainer);

/* Takes the memory, with this many bytes for moments. Returns RESULT_NONE, with the reason, if
 * there is too little left. The trainer stays the caller's. */
int snapshot_open(struct snapshot *snapshot, const struct trainer *trainer, size_t moment_bytes,
                  struct error *error);
void snapshot_close(struct snapshot *snapshot);

/* A copy is taken between two steps, in this order: _begin, after which the memory may be written
 * to, _add for each range of the moments, and _take, which copies. The one before must not be read
 * any more. */
void snapshot_begin(struct snapshot *snapshot, const struct trainer *trainer);
void snapshot_add(struct snapshot *snapshot, void *to, const void *from, size_t bytes);
void snapshot_take(struct snapshot *snapshot);

/* True if the copy is complete and may be read. With wait, waits until it is. */
bool snapshot_ready(const struct snapshot *snapshot, bool wait);
