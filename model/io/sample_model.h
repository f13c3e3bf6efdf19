/* A model opened for sampling by a command, with its device. */
#pragma once

#include <stdint.h>

#include "data/tokenize/tokenizer.h"
#include "data/util/error.h"
#include "model/config/config.h"
#include "model/core/sample.h"

struct sample_model {
    struct config config;
    struct backend be;
    struct precision precision;
    struct gpt gpt;
};

/* Opens the model of a checkpoint or a Hugging Face directory, for config->samples texts (0: one)
 * of config->data.seq_len tokens at once. On failure there is nothing to close. */
int sample_model_open(struct sample_model *model, const struct config *config, const char *from,
                      struct error *error);
void sample_model_close(struct sample_model *model);

/* Returns the longest context: the run's data.seq_len, or n_positions for a model without it, such
 * as one of Hugging Face. */
int64_t sample_model_context(const struct config *config);

/* Appends the tokens of a text, special tokens included, to *tokens, an stb_ds array; for an empty
 * one, the token that begins a text. */
int sample_encode(int32_t **tokens, const struct tokenizer *tokenizer, const char *text,
                  struct error *error);
