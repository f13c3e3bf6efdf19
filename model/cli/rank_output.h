/* Console output of several ranks. Rank 0 prints everything; another rank prints only why it
 * failed. With --log-ranks the output of every other rank goes to a file. */
#pragma once

#include "data/util/error.h"
#include "kernels/ranks.h"
#include "model/config/config.h"

/* Redirects standard output and standard error of ranks > 0 to /dev/null. Returns a duplicate of
 * the original standard error, for a final message. */
int rank_output_quiet(const struct ranks *ranks);

/* Redirects both streams of ranks > 0 to RUN_DIR/NAME/ranks/rank-00001.txt, to which they append:
 * the run's folder is not locked yet, so the file may be that of a run that is training. */
int rank_output_log(const struct ranks *ranks, const struct config *config, struct error *error);

/* Returns the delay in seconds, at most 14, before a rank prints why it failed. It is 0 for rank 0,
 * so that an error common to all ranks is printed once: Open MPI ends the others within 2 s. */
double rank_output_delay(const struct ranks *ranks);
