/* Messages about tensors that do not fit a model, which say what to do. */
#pragma once

#include <stdbool.h>

#include "data/util/error.h"
#include "model/architecture/parameters.h"
#include "model/io/tensor_files.h"

bool tensor_name_ends(const char *text, const char *end);

/* Fails because the tensor PREFIX NAME is missing. If there is one with the name after another
 * prefix, as wrapped models have, the message names that prefix. */
int tensor_missing(const struct tensor_files *files, const char *prefix, const char *name,
                   struct error *error);
int tensor_missing_adapter(const struct tensor_files *files, const char *prefix, const char *name,
                           struct error *error);

/* Returns the config keys that determine the first dimension in which a stored tensor differs from
 * its parameter, for "set %s as the file has it". */
const char *tensor_key_of_shape(const struct parameter *parameter,
                                const struct safetensors_entry *entry);
