/* A run: everything between a config and its run directory. */
#ifndef MODEL_RUN_H
#define MODEL_RUN_H

#include <signal.h>

#include "model/command_line.h"
#include "model/config.h"

/* Exit statuses of the program; 130 and 143 follow the shell's 128 + signal. */
enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_SIGNAL = 128 };

/* Trains from config until its last step or a signal. Returns an exit status; unless it is
 * EXIT_DONE or a signal's, error says why. */
int run_train(const struct config *config, const struct command_line *line, char *error);

/* Prints the banner of the same run and tables of the memory that it and its variants need, with
 * line->sizes those of larger models too (model/lab/memory_report.h), and trains nothing. */
int run_dry(const struct config *config, const struct command_line *line, char *error);

/* Prints text from the model at `from`, a checkpoint or a directory of Hugging Face, for each
 * prompt of the line; config comes from it. */
int run_sample(const struct config *config, const char *from, const struct command_line *line,
               char *error);

/* Prints loss, perplexity and bits per byte of the model at `from` on the text line->data, for each
 * precision of the line, or that of the config. */
int run_eval(const struct config *config, const char *from, const struct command_line *line,
             char *error);

/* From now on SIGINT and SIGTERM set the flag that is returned to their number; a second one ends
 * the program. */
const volatile sig_atomic_t *run_catch_signals(void);

#endif
