/* Output of ./train --dry-run --ranks, in at most 80 columns. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"
#include "model/plan/rank_estimate.h"

/* Prints the memory of a rank by part, compared with one process; the data that a rank sends in a
 * step, its time and the part hidden behind computation; the efficiency and the assumptions. */
int rank_print(FILE *out, const struct rank_request *request, struct error *error);
