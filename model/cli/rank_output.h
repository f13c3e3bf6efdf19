/* Who says what of several ranks: rank 0 everything, another one nothing but why it failed; and
 * what it would have said to a file, if there is one. */
#pragma once

#include "data/util/error.h"
#include "kernels/ranks.h"
#include "model/config/config.h"

/* From now on standard output and standard error of ranks > 0 lead nowhere. Returns a descriptor of
 * standard error as it was, for a last message. */
int rank_output_quiet(const struct ranks *ranks);

/* From now on they lead to RUN_DIR/NAME/ranks/rank-00001.txt, which is made anew. */
int rank_output_log(const struct ranks *ranks, const struct config *config, struct error *error);

/* How long a rank waits before it says why it failed: rank 0 not at all, so that what all ranks
 * find wrong is said once. In seconds, at most 14. Open MPI takes two to end the others. */
double rank_output_patience(const struct ranks *ranks);
