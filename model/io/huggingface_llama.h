/* The config.json of Llama's family: LlamaForCausalLM, MistralForCausalLM and Qwen2ForCausalLM of
 * huggingface/transformers. Internal to model/io/huggingface.c. */
#pragma once

#include <stdio.h>

#include "model/io/huggingface_source.h"
#include "model/io/huggingface_tokens.h"

/* Fills sizes and parts of config->model, marked as given. Fails, naming the key, on models with
 * other computations: another activation, an attention window shorter than the context, an unknown
 * kind of rope, or unsupported biases. */
int huggingface_read_llama(struct huggingface_source *source, struct config *config);

void huggingface_print_llama(FILE *out, const struct config *config,
                             const struct huggingface_tokens *tokens, const char *dtype);
