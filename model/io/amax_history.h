/* The file of fp8's delayed scaling, fp8.safetensors: one tensor, "amax_history"
 * [fp8.amax_history_length, tensors] in the order of model/core/quantization.h; row
 * step % fp8.amax_history_length belongs to that step. Values are magnitudes: finite, at least 0.
 */
#pragma once

#include <stdint.h>

#include "data/util/error.h"
#include "data/util/files.h"

/* Writes it durably; `bytes` and `sha256` are the file's. */
int amax_history_write(const float *history, int64_t length, int64_t count, const char *path,
                       uint64_t *bytes, char sha256[SHA256_HEX_MAX], struct error *error);

/* Fills history [length, count] for the step that comes next. A file with another length is taken
 * as far as it goes; rows that it does not have are 0. */
int amax_history_read(float *history, int64_t length, int64_t count, const char *path, int64_t step,
                      struct error *error);
