/* Key of stored results of a model: logits of a teacher, log-probabilities of a reference. */
#pragma once

#include "data/util/error.h"
#include "data/util/sha256.h"
#include "model/core/model.h"

/* Hashes all that a forward pass of an open model depends on but its tokens: the weights' files in
 * `directory` (those of adapters, if it has any; "": initial weights of config->seed), the
 * fingerprint of the adapters' model, and the keys of shape, adapters and numerics.
 * config->precision is resolved. */
int model_hash(char hex[SHA256_HEX_MAX], const struct model *model, const struct config *config,
               const char *directory, struct error *error);
