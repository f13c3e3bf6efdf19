/* The run directory, RUN_DIR/NAME: its lock, its config.json, and the checkpoint to resume from. */
#pragma once

#include "data/util/error.h"
#include "model/cli/command_line.h"
#include "model/config/config.h"

/* Creates the directory if it is missing and locks it, so that two processes never train in it.
 * *lock becomes a descriptor that the caller closes, or -1 if another process holds the lock. On a
 * file system without locks the call succeeds without one. */
int run_directory_lock(int *lock, const char *directory, struct error *error);

/* Chooses the checkpoint to resume from: `from` (FILE_PATH_MAX bytes) becomes its path, or "" for a
 * new run. Fails if a new run, or one that resumes from another directory, would overwrite existing
 * checkpoints. Names damaged checkpoints on standard error. Returns an exit status, with a message
 * unless it is 0. */
int run_directory_start(char *from, const char *directory, const struct config *config,
                        const struct command_line *line, struct error *error);

/* If the directory has no checkpoint, renames metrics.jsonl of the earlier run, unless it is empty,
 * to metrics-1.jsonl, or the next free number, with a note on standard error. */
int run_directory_set_aside(const char *directory, struct error *error);

/* Writes DIRECTORY/config.json. */
int run_directory_write_config(const char *directory, const struct config *config,
                               struct error *error);
