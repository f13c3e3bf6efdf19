/* The command ./train --choices: multiple-choice questions, answered in one or more precisions. */
#pragma once

#include "data/util/error.h"
#include "model/cli/command_line.h"

/* Answers line->questions in each of line->precisions, or in the config's if there are none. Prints
 * a table; writes choices.json, with the log-likelihoods of all choices, into line->out, which it
 * creates. Returns an exit status. */
int run_choices(const struct config *config, const char *from, const struct command_line *line,
                struct error *error);
