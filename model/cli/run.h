/* Commands of ./train: training, and its dry run. */
#pragma once

#include "data/util/error.h"
#include "data/util/program.h"
#include "kernels/ranks.h"
#include "model/cli/command_line.h"
#include "model/config/config.h"

/* Trains until the last step or a signal. With several ranks, rank 0 writes the files of the run,
 * and each rank writes its part of a checkpoint. Returns an exit status, with a message in error
 * unless the status is EXIT_DONE or that of a signal. After EXIT_FAILED other ranks may still be
 * training: the caller ends them with ranks_abort. */
int run_train(const struct config *config, const struct command_line *line,
              const struct ranks *ranks, struct error *error);

/* Prints the banner of the run and the memory of the run and its variants
 * (model/plan/memory_text.h), without training. line->fit prints only whether the run fits and
 * which options make it fit; if none do, returns EXIT_FAILED without a message in error.
 * line->sizes adds tables of larger models. */
int run_dry(const struct config *config, const char *from, const struct command_line *line,
            struct error *error);
