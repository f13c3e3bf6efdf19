/* Files of the optimizer's moments, which all ranks write at the same time. Each rank writes
 * files of whole tensors, so the files do not depend on the division of elements among ranks.
 *
 *     optimizer-00001-of-00004.safetensors      by rank 0
 *     optimizer-00002-of-00004.safetensors      by rank 1, ...
 *     optimizer.safetensors.index.json          by rank 0
 *
 * With one rank there is one file, unless it is too large. Ranks send each other the elements that
 * others write: either all of them in advance, into a snapshot that each rank then writes by
 * itself, or piece by piece while writing. */
#pragma once

#include "data/util/error.h"
#include "model/io/checkpoint_tensors.h"
#include "model/optimize/optimizer.h"
#include "model/optimize/snapshot.h"

struct moment_cursor;
struct moment_files {
    const struct optimizer *optimizer;
    const struct ranks *ranks;
    struct saved_tensor *moments;      /* stb_ds array, in the order of entries */
    struct safetensors_entry *entries; /* stb_ds array */
    struct tensor_division division;
    size_t element_bytes;          /* most bytes of an element */
    struct stored_file *written;   /* stb_ds array: the files that this rank has written */
    struct moment_cursor *cursors; /* [ranks]: positions in the files that ranks write */
    struct rank_message *out, *in; /* [ranks] */
    struct stored_file *gathered;  /* [ranks]: the file that each rank has written in a round */
    char *sent;                    /* [ranks, PIECE] elements */
    char *piece;                   /* [PIECE] elements */
};

/* Divides the moments into files of at most `limit` bytes, and allocates memory for messages. The
 * caller keeps owning the optimizer. Closing is harmless after a failure. */
int moment_files_open(struct moment_files *files, const struct optimizer *optimizer, uint64_t limit,
                      struct error *error);
void moment_files_close(struct moment_files *files);

/* Returns the bytes of data in the files that this rank writes. */
size_t moment_files_bytes(const struct moment_files *files);

/* Fills snapshot->moments with the data of this rank's files, one file after the other, between
 * snapshot_begin and snapshot_take. All ranks call it. */
void moment_files_copy(struct moment_files *files, struct snapshot *snapshot);

/* Writes this rank's files durably, from a snapshot. If that is NULL, the data come from the
 * optimizers of all ranks, and all ranks call it. With a nonzero status, or after a failure, a rank
 * writes nothing but still sends its elements. */
int moment_files_write(struct moment_files *files, const struct snapshot *snapshot,
                       const char *directory, int status, struct error *error);

/* Appends the files of all ranks, in order, to *list, an stb_ds array. All ranks call it. */
void moment_files_list(const struct moment_files *files, struct stored_file **list);
