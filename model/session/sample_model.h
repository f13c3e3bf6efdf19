/* A model opened for sampling by a command, with its device. */
#pragma once

#include <stdint.h>

#include "data/tokenize/tokenizer.h"
#include "data/util/error.h"
#include "model/config/config.h"
#include "model/io/huggingface.h"
#include "model/task/sample.h"

struct sample_model {
    struct backend be;
    struct model model;
};

/* Opens the model of a checkpoint or a Hugging Face directory, for config->samples texts (0: one)
 * of config->data.seq_len tokens at once. On failure there is nothing to close. */
int sample_model_open(struct sample_model *sampled, const struct config *config, const char *from,
                      struct error *error);
void sample_model_close(struct sample_model *sampled);

/* Returns the longest context: the run's data.seq_len, or n_positions for a model without it, such
 * as one of Hugging Face. Without it dynamic rope scaling has its original positions, for which
 * frequencies are not scaled. */
int64_t sample_model_context(const struct config *config);

/* Sets the tokens that end a text: those of the model in `from`, by its config.json and
 * generation_config.json, or in the model that its adapters belong to. A model that names none has
 * those of the tokenizer. As in transformers, a token that is not special stays in the text. */
int sample_find_ends(struct sample_options *options, const struct config *config,
                     const struct tokenizer *tokenizer, const char *from, struct error *error);

/* The same for tokens that have been read. */
void sample_set_ends(struct sample_options *options, const struct huggingface_tokens *tokens,
                     const struct tokenizer *tokenizer);

/* Appends the tokens of a text, special tokens included, to *tokens, an stb_ds array. If it begins
 * a context, those of tokenizer_encode_context. */
int sample_encode(int32_t **tokens, const struct tokenizer *tokenizer, const char *text,
                  bool begins, struct error *error);
