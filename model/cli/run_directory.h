/* The directory of a run, RUN_DIR/NAME: who may write there, and where a run begins in it. */
#pragma once

#include "data/util/error.h"
#include "model/cli/command_line.h"
#include "model/config/config.h"

/* Creates the directory if need be and takes its lock, so that two processes never train in it.
 * *lock is a descriptor to close at the end, -1 if another process has the lock. File systems
 * without locks are trusted. */
int run_directory_lock(int *lock, const char *directory, struct error *error);

/* Decides where to begin: from becomes the path of a checkpoint (FILE_PATH_MAX bytes), or "" for a
 * new run. What a new run, or one that goes on from somewhere else, would overwrite is refused.
 * Damaged checkpoints are named on standard error. Returns an exit status, with a message unless it
 * is 0. */
int run_directory_start(char *from, const char *directory, const struct config *config,
                        const struct command_line *line, struct error *error);

/* Renames the metrics.jsonl of a run that was killed before its first checkpoint to
 * metrics-1.jsonl, or the next number that is free, and says so. */
int run_directory_set_aside(const char *directory, struct error *error);

/* Writes DIRECTORY/config.json. */
int run_directory_write_config(const char *directory, const struct config *config,
                               struct error *error);
