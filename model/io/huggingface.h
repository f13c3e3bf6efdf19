/* Hugging Face's JSON files beside the weights of a model: they tell transformers (and us) the
 * shape, how texts end, and which tokenizer it is. Sources: GPT2Config, GenerationConfig and
 * AutoTokenizer of huggingface/transformers. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"
#include "data/tokenize/tokenizer.h"
#include "kernels/dtype.h"
#include "model/config/config.h"
#include "model/io/huggingface_tokens.h"

/* Those of a model of ours: the tokenizer's end_of_text begins texts, its stop ends them. Where the
 * tokenizer is not known (NULL), config->data.tokenizer tells. */
struct huggingface_tokens huggingface_tokens_of(const struct config *config,
                                                const struct tokenizer *tokenizer);

/* Print config.json, generation_config.json and tokenizer_config.json; dtype is that of the
 * weights. The caller checks ferror(out). */
void huggingface_print_config(FILE *out, const struct config *config,
                              const struct huggingface_tokens *tokens, enum dtype dtype);
void huggingface_print_generation_config(FILE *out, const struct huggingface_tokens *tokens);
void huggingface_print_tokenizer_config(FILE *out, const struct config *config,
                                        const struct tokenizer *tokenizer);

/* Fills sizes and parts in config->model from DIRECTORY/config.json and marks them as given;
 * nothing else changes. GPT-2, Llama, Mistral and Qwen2 are known, in old and new spellings, and
 * what huggingface_print_config writes. Fails when the file is missing or malformed, and when it
 * describes what would compute something else: it names the key. */
int huggingface_read_config(struct config *config, const char *directory, struct error *error);

/* Reads the tokens from DIRECTORY/config.json, which was read before. What is no token of the
 * vocabulary is none; of several that end texts, the first is taken. */
int huggingface_read_tokens(struct huggingface_tokens *tokens, const struct config *config,
                            const char *directory, struct error *error);
