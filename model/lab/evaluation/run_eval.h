/* ./train --eval */
#pragma once

#include "data/util/error.h"
#include "model/cli/command_line.h"
#include "model/config/config.h"

/* Prints loss, perplexity and bits per byte of the model at `from` on the text of data.val, which
 * --data sets, for each of line->precisions, or in the precision of the config if there are none.
 * Returns an exit status. */
int run_eval(const struct config *config, const char *from, const struct command_line *line,
             struct error *error);
