/* config.json of a model whose parts no class of transformers has: model_type "mantissa", and the
 * keys of the config's block "model". Internal to model/io/huggingface.c. */
#pragma once

#include <stdio.h>

#include "model/io/huggingface_source.h"
#include "model/io/huggingface_tokens.h"

int huggingface_read_own(struct huggingface_source *source, struct config *config);

void huggingface_print_own(FILE *out, const struct config *config,
                           const struct huggingface_tokens *tokens, const char *dtype);
