/* ./train --sample */
#pragma once

#include <stdio.h>

#include "data/tokenize/tokenizer.h"
#include "data/util/error.h"
#include "model/cli/command_line.h"
#include "model/task/sample.h"

/* Prints prompt, continuation and a line break to out. An empty prompt generates from the beginning
 * of a text. Sets the prompt, emit and context of the sampler's options. */
int print_sample(FILE *out, struct sample_result *result, struct sampler *sampler,
                 const struct tokenizer *tokenizer, const char *prompt, struct error *error);

/* Returns the options of the config, without a prompt. */
struct sample_options sample_options_of(const struct config *config);

/* Prints the number and speed of the tokens of `texts` texts. */
void sample_print_speed(FILE *out, const struct sample_result *result, int64_t texts);

/* Prints one text per prompt of the line, or as many as --samples. `from` is a checkpoint or a
 * Hugging Face model directory; config is that of the same model. */
int run_sample(const struct config *config, const char *from, const struct command_line *line,
               struct error *error);
