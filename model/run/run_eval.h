/* ./train --eval: how well a model predicts a text, in one precision or several. */
#ifndef MODEL_RUN_RUN_EVAL_H
#define MODEL_RUN_RUN_EVAL_H

#include "data/base/error.h"
#include "model/run/command_line.h"

/* Prints loss, perplexity and bits per byte of the model at `from` on the text line->data, for each
 * precision of the line, or that of the config. */
int run_eval(const struct config *config, const char *from, const struct command_line *line,
             struct error *error);

#endif
