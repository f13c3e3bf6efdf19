/* The directory RUN/checkpoints: which steps are there, which are whole, which may go.
 *
 *     step-00001000        complete, as far as a name can tell: it got this name when it was
 *     .step-00001000.tmp   being written, or left behind by a writer that was killed
 *     .step-00000800.old   being removed, likewise
 *
 * Anything else is not ours and stays untouched. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"
#include "data/util/files.h"
#include "model/io/tensor_shards.h"

/* Removes what killed writers have left, as far as possible. Nobody may be writing. */
void checkpoint_directory_clean(const char *run_directory);

/* Number of directories with the name of a checkpoint; 0 if that cannot be read. */
int64_t checkpoint_directory_count(const char *run_directory);

/* Stores the path of that step's checkpoint. True if a directory of this name exists. */
bool checkpoint_directory_find(char path[FILE_PATH_MAX], const char *run_directory, int64_t step);

/* RUN/checkpoints/.step-STEP.tmp, made anew and empty. Leftovers are removed. */
int checkpoint_directory_begin(char path[FILE_PATH_MAX], const char *run_directory, int64_t step,
                               struct error *error);

/* Whether files (an stb_ds array) that were just written, perhaps by other ranks, are all there
 * with their sizes. */
int checkpoint_directory_check(const char *directory, const struct stored_file *files,
                               struct error *error);

/* Gives the directory made by _begin its final name, which it stores in path, durably. A checkpoint
 * of the same step that stands there is replaced. */
int checkpoint_directory_publish(char path[FILE_PATH_MAX], const char *run_directory, int64_t step,
                                 struct error *error);

/* Removes the checkpoints before `step` but for the newest keep - 1 (>= 0), and but for that of the
 * step `best` (0: none), which does not count among them. Only what is a whole
 * checkpoint (by trainer.json and the sizes of the files; hashing them all at every save would cost
 * more than it is worth) is counted or removed. */
int checkpoint_directory_prune(const char *run_directory, int64_t step, int64_t keep, int64_t best,
                               struct error *error);

/* What is wanted of a checkpoint: its weights alone need none of the optimizer's files. */
enum checkpoint_parts { CHECKPOINT_WEIGHTS, CHECKPOINT_WHOLE };

/* Finds the complete checkpoint of the highest step: trainer.json unchanged, each file it lists of
 * these parts with its size and SHA-256. Newer ones that are damaged or were never completed are
 * named in warnings, a line each, with the reason. Returns 0 with its path (FILE_PATH_MAX bytes),
 * RESULT_NONE, RESULT_DAMAGED, or -1 with a message if the directory cannot be read. */
int checkpoint_newest(char *path, const char *run_directory, enum checkpoint_parts parts,
                      FILE *warnings, struct error *error);

/* Returns 0 if the checkpoint at path is complete in that sense, and of the step in its name;
 * else -1 with the reason. */
int checkpoint_verify(const char *path, enum checkpoint_parts parts, struct error *error);
