/* ./train --chat: a conversation with a model, line by line. */
#pragma once

#include "data/util/error.h"
#include "model/cli/command_line.h"

/* Reads lines from standard input and prints an answer to each, in the model's chat template. Keys
 * and values of the conversation stay in the cache. Ctrl-C ends an answer, the end of the input the
 * program. Fails if the tokenizer has the special tokens of no known template. */
int run_chat(const struct config *config, const char *from, const struct command_line *line,
             struct error *error);
