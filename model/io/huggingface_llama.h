/* The config.json of Llama's family: LlamaForCausalLM, MistralForCausalLM and Qwen2ForCausalLM of
 * huggingface/transformers. Internal to model/io/huggingface.c. */
#pragma once

#include <stdio.h>

#include "model/io/huggingface_source.h"
#include "model/io/huggingface_tokens.h"

/* Fills sizes and parts of config->model, marked as given. Refuses by name what would compute
 * something else: another activation, a window of attention shorter than the context, an unknown
 * kind of rope, biases that the class has and we have not. */
int huggingface_read_llama(struct huggingface_source *source, struct config *config);

void huggingface_print_llama(FILE *out, const struct config *config,
                             const struct huggingface_tokens *tokens, const char *dtype);
