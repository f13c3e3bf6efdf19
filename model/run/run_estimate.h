/* `./train --dry-run --ranks N`, behind the tables of the dry run. */
#pragma once

#include "data/base/error.h"
#include "model/config/config.h"
#include "model/run/command_line.h"

/* Prints what the run would need and how fast it would be on line->ranks ranks
 * (model/lab/ranks/rank_text.h). Returns an exit status. */
int run_estimate(const struct config *config, const struct command_line *line, struct error *error);
