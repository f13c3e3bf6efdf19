/* Commands of ./train: a run, everything between a config and its run directory; and --eval, how
 * well a model predicts a text, in one precision or several. */
#pragma once

#include "data/util/error.h"
#include "data/util/program.h"
#include "kernels/ranks.h"
#include "model/cli/command_line.h"
#include "model/config/config.h"

/* Trains from config until its last step or a signal, together with other ranks if there are some:
 * rank 0 writes the files of the run, all their part of checkpoints. Returns an exit status; unless
 * it is EXIT_DONE or a signal's, error says why. With EXIT_FAILED other ranks may still be
 * training: the caller ends them (ranks_abort). */
int run_train(const struct config *config, const struct command_line *line,
              const struct ranks *ranks, struct error *error);

/* Prints the banner of the same run and tables of the memory that it and its variants need
 * (model/plan/memory_text.h), or with line->fit only whether it fits and what to change;
 * EXIT_FAILED, without a message in error, if nothing makes it fit. With line->sizes tables of
 * larger models follow, with line->ranks what the run would need and how fast it would be on so
 * many (model/plan/rank_text.h). Trains nothing. */
int run_dry(const struct config *config, const struct command_line *line, struct error *error);

/* Prints loss, perplexity and bits per byte of the model at `from` on the text line->data, for each
 * precision of the line, or that of the config. */
int run_eval(const struct config *config, const char *from, const struct command_line *line,
             struct error *error);
