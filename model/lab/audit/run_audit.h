/* ./train --audit: the command. */
#pragma once

#include "data/base/error.h"
#include "model/run/command_line.h"

/* Looks at config from the weights at `from` (a checkpoint or a directory of Hugging Face; NULL:
 * initial ones, or model.init_from). Prints the tables and the advice; writes audit.json and
 * audit.html into line->out if given, a folder that is made before the work begins. Returns an exit
 * status. */
int run_audit(const struct config *config, const char *from, const struct command_line *line,
              struct error *error);
