/* The history of fp8's delayed scaling in a checkpoint: fp8.safetensors, see amax_history.h. Runs
 * without such a history have no file. */
#pragma once

#include "data/util/error.h"
#include "data/util/files.h"
#include "model/core/trainer.h"

extern const char checkpoint_history_name[];

/* Writes it durably, from a copy on the host, or from the backend if copy is NULL. bytes and sha256
 * are the file's. */
int checkpoint_write_history(const struct quantization *quantization, const float *copy,
                             const char *path, uint64_t *bytes, char sha256[SHA256_HEX_MAX],
                             struct error *error);

/* Reads what a directory has of it, if anything, for the step that comes next. Nothing happens in a
 * run that keeps no history. */
int checkpoint_read_history(const struct quantization *quantization, const char *directory,
                            int64_t step, struct error *error);
