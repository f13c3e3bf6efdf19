/* The directory RUN/checkpoints: finds, verifies, publishes and removes checkpoints.
 *
 *     step-00001000        renamed to this name when it was complete
 *     .step-00001000.tmp   being written, or left by a killed writer
 *     .step-00000800.old   being removed, or left by a killed writer
 *
 * Other names are ignored and never changed. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"
#include "data/util/files.h"
#include "model/io/tensor_files.h"

/* Removes the leftovers of killed writers, as far as possible. No checkpoint may be in progress. */
void checkpoint_directory_clean(const char *run_directory);

/* Number of directories with the name of a checkpoint; 0 if RUN/checkpoints cannot be read. */
int64_t checkpoint_directory_count(const char *run_directory);

/* Stores the path of a step's checkpoint. True if that directory exists. */
bool checkpoint_directory_find(char path[FILE_PATH_MAX], const char *run_directory, int64_t step);

/* Creates an empty RUN/checkpoints/.step-STEP.tmp, and stores its path. Leftovers are removed. */
int checkpoint_directory_begin(char path[FILE_PATH_MAX], const char *run_directory, int64_t step,
                               struct error *error);

/* Checks that all files of an stb_ds array, just written by any rank, exist with their sizes. */
int checkpoint_directory_check(const char *directory, const struct stored_file *files,
                               struct error *error);

/* Renames the directory of _begin durably to its final name, and stores that in path. An existing
 * checkpoint of the same step is replaced. */
int checkpoint_directory_publish(char path[FILE_PATH_MAX], const char *run_directory, int64_t step,
                                 struct error *error);

/* Removes the checkpoints before `step`, except the newest keep - 1 (>= 0) and that of the step
 * `best` (0: none), which is not counted. Only complete checkpoints are counted or removed. They
 * are checked by trainer.json and file sizes; hashing all files at every save would be too slow. */
int checkpoint_directory_prune(const char *run_directory, int64_t step, int64_t keep, int64_t best,
                               struct error *error);

/* Required parts of a checkpoint: CHECKPOINT_WEIGHTS does not need the optimizer's files. */
enum checkpoint_parts { CHECKPOINT_WEIGHTS, CHECKPOINT_WHOLE };

/* Finds the complete checkpoint of the highest step: trainer.json is unchanged, and each listed
 * file of these parts has its size and SHA-256. Newer ones that are damaged or incomplete are
 * printed to warnings, a line each, with the reason. Returns 0 with its path (FILE_PATH_MAX bytes),
 * RESULT_NONE, RESULT_DAMAGED, or -1 with a message if the directory cannot be read. */
int checkpoint_newest(char *path, const char *run_directory, enum checkpoint_parts parts,
                      FILE *warnings, struct error *error);

/* Returns 0 if the checkpoint at path is complete in that sense and has the step of its name; else
 * -1 with the reason. */
int checkpoint_verify(const char *path, enum checkpoint_parts parts, struct error *error);

/* Checkpoint that a run directory stands for. CHECKPOINT_KEPT is that of the lowest validation loss
 * if the run kept it (checkpoint.keep_best), as load_best_model_at_end of transformers has it, else
 * the newest. CHECKPOINT_BEST fails where the former is missing. */
enum checkpoint_choice { CHECKPOINT_KEPT, CHECKPOINT_BEST, CHECKPOINT_NEWEST };

/* Resolves a path given by the user to a checkpoint's path (FILE_PATH_MAX bytes). A run directory
 * stands for one of its complete checkpoints; any other path is unchanged. If the best one is not
 * the newest, a line in `warnings` says which one was taken. If there is a trainer.json, the given
 * parts are verified, which reads their files completely, so loading need not verify them again. */
int checkpoint_locate(char *path, const char *given, enum checkpoint_parts parts,
                      enum checkpoint_choice choice, FILE *warnings, struct error *error);
