/* fp8.safetensors, the file of fp8's delayed scaling. It has one tensor, "amax_history"
 * [fp8.amax_history_length, tensors], in the order of model/core/quantization.h. Row step %
 * fp8.amax_history_length belongs to that step. Values are finite and at least 0. Runs without a
 * history have no such file. */
#pragma once

#include <stdint.h>

#include "data/util/error.h"
#include "model/io/tensor_files.h"

#define AMAX_HISTORY_NAME "fp8.safetensors"

/* Writes the file to a directory durably, and appends it to *files, an stb_ds array. */
int amax_history_write(const float *history, int64_t length, int64_t count, const char *directory,
                       struct stored_file **files, struct error *error);

/* Fills history [length, count] for the next step. From a file of another length the most recent
 * rows are used; missing rows are 0. */
int amax_history_read(float *history, int64_t length, int64_t count, const char *path, int64_t step,
                      struct error *error);
