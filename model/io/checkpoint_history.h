/* Amax history of fp8's delayed scaling in a checkpoint: fp8.safetensors, see amax_history.h. Runs
 * without a history have no such file. */
#pragma once

#include "data/util/error.h"
#include "data/util/files.h"
#include "model/core/trainer.h"

extern const char checkpoint_history_name[];

/* Writes the file durably, from a copy on the host, or from the backend if copy is NULL. Stores its
 * size and hash in bytes and sha256. */
int checkpoint_write_history(const struct quantization *quantization, const float *copy,
                             const char *path, uint64_t *bytes, char sha256[SHA256_HEX_MAX],
                             struct error *error);

/* Reads the history for the next step from a directory, if it has one. Does nothing in a run
 * without a history. */
int checkpoint_read_history(const struct quantization *quantization, const char *directory,
                            int64_t step, struct error *error);
