/* A run: everything between a config and its run directory. */
#ifndef MODEL_RUN_RUN_H
#define MODEL_RUN_RUN_H

#include "data/base/error.h"
#include "data/base/exit_status.h"
#include "model/run/command_line.h"
#include "model/config/config.h"

/* Trains from config until its last step or a signal. Returns an exit status; unless it is
 * EXIT_DONE or a signal's, error says why. */
int run_train(const struct config *config, const struct command_line *line, struct error *error);

/* Prints the banner of the same run and tables of the memory that it and its variants need, with
 * line->sizes those of larger models too (model/lab/memory/memory_text.h), and trains nothing. */
int run_dry(const struct config *config, const struct command_line *line, struct error *error);

#endif
