/* Hugging Face's JSON files beside the weights of a model: its shape, the tokens that begin and end
 * texts, and the kind of tokenizer. Sources: GPT2Config, GenerationConfig and AutoTokenizer of
 * huggingface/transformers. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"
#include "data/tokenize/tokenizer.h"
#include "kernels/dtype.h"
#include "model/config/config.h"

enum { HUGGINGFACE_ENDS_MAX = 30 };

/* Special tokens of a model; -1 for none. */
struct huggingface_tokens {
    int64_t begin, pad;                 /* the token before a text, and padding */
    int32_t ends[HUGGINGFACE_ENDS_MAX]; /* [end_count] tokens that end a text */
    int end_count;
};

/* Adds a token that ends a text, unless it is -1 or already there. Returns false if there are
 * already HUGGINGFACE_ENDS_MAX. */
bool huggingface_add_end(struct huggingface_tokens *tokens, int64_t token);

/* Returns the tokens of a model trained here: the tokenizer's end_of_text begins texts; its eos and
 * stop end them, or end_of_text if it has neither. Without a tokenizer (NULL) they follow from
 * config->data.tokenizer. */
struct huggingface_tokens huggingface_tokens_of(const struct config *config,
                                                const struct tokenizer *tokenizer);

/* Writes the value of "eos_token_id": a token, a list of several, or null. Returns text. */
enum { HUGGINGFACE_ENDS_TEXT = 14 * HUGGINGFACE_ENDS_MAX };
const char *huggingface_ends_text(char text[HUGGINGFACE_ENDS_TEXT],
                                  const struct huggingface_tokens *tokens);

/* Print config.json, generation_config.json and tokenizer_config.json; dtype is that of the
 * weights. The caller checks ferror(out). */
void huggingface_print_config(FILE *out, const struct config *config,
                              const struct huggingface_tokens *tokens, enum dtype dtype);
void huggingface_print_generation_config(FILE *out, const struct huggingface_tokens *tokens);
void huggingface_print_tokenizer_config(FILE *out, const struct config *config,
                                        const struct tokenizer *tokenizer);

/* Writes how to get the model that should be in a directory, for a message. A name such as
 * Qwen/Qwen2.5-0.5B is that of the Hub, and then the text also says where the model will be. */
enum { FETCH_ADVICE_MAX = 600 };
void huggingface_fetch_advice(char text[FETCH_ADVICE_MAX], const char *directory);

/* Fills sizes and parts in config->model from DIRECTORY/config.json and marks them as given;
 * nothing else changes. Supports the families of MODEL_FAMILIES, in old and new spellings, and
 * the output of huggingface_print_config. The table in
 * model/io/huggingface_read.c lists the keys that are read; others are ignored. Fails if the
 * file is missing or malformed, or if it describes a model with other computations, or with weights
 * in a format that model/io/quantized_tensors.h does not list; the message names the key and its
 * value. */
int huggingface_read_config(struct config *config, const char *directory, struct error *error);

/* Reads the tokens from DIRECTORY/config.json, after huggingface_read_config, and those that end a
 * text also from DIRECTORY/generation_config.json, if it exists. Numbers outside the vocabulary
 * count as none. */
int huggingface_read_tokens(struct huggingface_tokens *tokens, const struct config *config,
                            const char *directory, struct error *error);
