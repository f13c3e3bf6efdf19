/* What ./train says about the memory of a run, in at most 80 columns. */
#pragma once

#include <stdio.h>

#include "data/base/error.h"
#include "model/lab/memory/memory_advice.h"
#include "model/lab/memory/memory_figures.h"

/* The parts in each precision; what each option saves and costs; the largest micro-batches; and
 * whether it fits, or what to change. */
int memory_print_run(FILE *out, const struct memory_question *question, struct error *error);

/* Whether it fits, or the advice as flags to paste and what each costs. Returns RESULT_NONE if
 * nothing makes it fit. */
int memory_print_fit(FILE *out, const struct memory_question *question, struct error *error);

/* What memory_advise gave and returned, without costs: what to change, nothing if that is nothing,
 * or with RESULT_NONE that no option helps. */
void memory_print_advice(FILE *out, const struct memory_advice *advice, int status);
