/* What ./train --dry-run says about memory: tables of at most 80 columns. */
#pragma once

#include <stdio.h>

#include "data/base/error.h"
#include "model/lab/memory/memory_plan.h"

/* What is asked: about a run of config, its precision resolved. */
struct memory_question {
    const struct config *config;
    struct backend *be;
    size_t memory; /* bytes that the run may take */
    bool free;     /* they are what is free here, rather than what was asked for */
};

/* gib < 0: what is free on be. */
struct memory_question memory_question(const struct config *config, struct backend *be, double gib);

/* The parts in each precision; what each option saves and costs; the largest micro-batches; and
 * whether it fits, or what to change. */
int memory_print_run(FILE *out, const struct memory_question *question, struct error *error);

/* The same question for models from 124M to 70B. */
int memory_print_sizes(FILE *out, const struct memory_question *question, struct error *error);
