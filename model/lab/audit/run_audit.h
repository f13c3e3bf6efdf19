/* The command ./train --audit. */
#pragma once

#include "data/util/error.h"
#include "model/cli/command_line.h"

/* Audits line->precisions, by default bf16, fp16 and the config's if it quantizes, with the weights
 * at `from` (NULL: model.init_from or initial weights). Prints the tables and the advice. Writes
 * audit.json (precisions that quantize: audit_PRECISION.json) into line->out, which it creates.
 * Returns an exit status. */
int run_audit(const struct config *config, const char *from, const struct command_line *line,
              struct error *error);
