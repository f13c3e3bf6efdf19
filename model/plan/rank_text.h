/* What ./train says about a run on several ranks, in at most 80 columns. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"
#include "model/plan/rank_estimate.h"

/* The memory of a rank by part, beside that of one process; what a rank sends in a step, how long
 * that takes and how much of it computing hides; and the efficiency, with what was assumed. */
int rank_print(FILE *out, const struct rank_question *question, struct error *error);
