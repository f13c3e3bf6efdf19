/* Divergence to a finite loss.
 *
 * Training has diverged if DIVERGENCE_STEPS finite losses in a row exceed a limit. Spikes are
 * shorter; losses that are not finite have another warning (model/cli/saving.h). A model that gives
 * all tokens equal chances has a loss of ln V, where V is model.vocab_size: the limit is one nat
 * above that and above the run's first loss, since a fine-tune may begin with a model that is
 * surely wrong, but at most 2 ln V, so that a resume does not begin anew.
 *
 * Other objectives have limits of their own (model/task/objective.h). */
#pragma once

#include <stdbool.h>

#include "model/config/config.h"

enum { DIVERGENCE_STEPS = 20 };

struct divergence {
    double first; /* loss of the first step of this process; 0: none yet */
    double limit; /* set by divergence_watch */
    int steps;    /* last steps in a row that are finite and above the limit */
};

/* Counts a step's loss. True if training has diverged with this step. */
bool divergence_watch(struct divergence *divergence, const struct config *config, double loss);
