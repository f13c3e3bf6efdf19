/* The files of both moments of an optimizer, written by all ranks at the same time. Each rank
 * writes files of whole tensors, so that the files do not depend on which rank has which elements.
 *
 *     optimizer-00001-of-00004.safetensors      by rank 0
 *     optimizer-00002-of-00004.safetensors      by rank 1, ...
 *     optimizer.safetensors.index.json          by rank 0
 *
 * A rank that trains alone writes all files, of which there is one unless that is too large. Ranks
 * send each other the elements that others write: either all of them before, into a snapshot that
 * each then writes by itself, or piece by piece while they write. */
#pragma once

#include "data/util/error.h"
#include "model/io/checkpoint_tensors.h"
#include "model/core/optimizer.h"
#include "model/core/snapshot.h"

struct moment_cursor;
struct moment_files {
    const struct optimizer *optimizer;
    const struct ranks *ranks;
    struct safetensors_entry *entries; /* stb_ds array */
    struct tensor_division division;
    size_t element_bytes;
    struct stored_file *written;   /* stb_ds array: the files that this rank has written */
    struct moment_cursor *cursors; /* [ranks]: positions in the files that ranks write */
    struct rank_message *out, *in; /* [ranks] */
    struct stored_file *row;       /* [ranks] */
    char *sent;                    /* [ranks, PIECE] elements */
    char *piece;                   /* [PIECE] elements */
};

/* Divides the moments into files of at most `limit` bytes, and takes memory for messages. The
 * optimizer stays the caller's. Closing is harmless after a failure. */
int moment_files_open(struct moment_files *files, const struct optimizer *optimizer, uint64_t limit,
                      struct error *error);
void moment_files_close(struct moment_files *files);

/* Bytes of data in the files that this rank writes. */
size_t moment_files_bytes(const struct moment_files *files);

/* Fills snapshot->moments with the data of this rank's files, one file after the other, between
 * snapshot_begin and snapshot_take. All ranks call it. */
void moment_files_copy(struct moment_files *files, struct snapshot *snapshot);

/* Writes this rank's files durably, from a snapshot. If that is NULL the data come from the
 * optimizers of all ranks, which all call it: with a status that is not 0, or after a failure, a
 * rank writes nothing, but still sends. */
int moment_files_write(struct moment_files *files, const struct snapshot *snapshot,
                       const char *directory, int status, struct error *error);

/* Appends the files of all ranks, in order, to *list, an stb_ds array. All ranks call it. */
void moment_files_list(const struct moment_files *files, struct stored_file **list);
