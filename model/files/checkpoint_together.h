/* Writing moments of which each rank has a part: the ranks write files at the same time, each of
 * whole tensors, so that what is written does not depend on who had what.
 *
 *     optimizer-00001-of-00004.safetensors      by rank 0
 *     optimizer-00002-of-00004.safetensors      by rank 1, ...
 *     optimizer.safetensors.index.json          by rank 0
 *
 * While they write, each rank sends the others what it has of the tensors that they write. */
#pragma once

#include "data/base/error.h"
#include "model/files/checkpoint_tensors.h"
#include "model/optimizer.h"

/* Writes both moments durably, as checkpoint_write_moments does; all ranks call it. On rank 0 the
 * files of all ranks are appended to those of the target. Fails on all ranks if it does on one. */
int checkpoint_write_moments_together(const struct optimizer *optimizer,
                                      const struct checkpoint_target *target, struct error *error);

/* The same in steps, for ranks that train on while they write: what a rank's files hold is gathered
 * in its memory, by all ranks together; each writes its files alone; all list them together. */
struct gathered_moments {
    const struct optimizer *optimizer;
    struct safetensors_entry *entries; /* stb_ds array, as the next is by file */
    struct tensor_division division;
    char *data; /* what this rank's files hold, one file after the other */
    size_t bytes;
    struct stored_file *written; /* stb_ds array: of this rank's files, those that are written */
    struct stored_file *row;     /* [ranks]: one file of each, on its way to the list */
};

/* Takes the memory; the optimizer stays the caller's. Closing is harmless after a failure. */
int gathered_moments_open(struct gathered_moments *gathered, const struct optimizer *optimizer,
                          uint64_t limit, struct error *error);
void gathered_moments_close(struct gathered_moments *gathered);

/* All ranks call it, between steps; fails on all if it does on one. */
int gathered_moments_fill(struct gathered_moments *gathered, struct error *error);
int gathered_moments_write(struct gathered_moments *gathered, const char *directory,
                           struct error *error);
/* All ranks call it, after writing, whether that failed or not. On rank 0 the files of all ranks
 * and an index are appended to *files, an stb_ds array. */
int gathered_moments_list(const struct gathered_moments *gathered, const char *directory,
                          struct stored_file **files, struct error *error);
