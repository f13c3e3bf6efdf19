/* Texts of ./train --dry-run about memory, in at most 80 columns: tables of a run and of models of
 * well-known sizes, whether a run fits, and what would make it fit. */
#pragma once

#include <stdio.h>

#include "model/plan/memory_options.h"

/* Run to describe, and the memory that it may use. The precision of config is resolved. */
struct memory_request {
    const struct config *config;
    struct backend *be;
    size_t memory; /* bytes that the run may use */
    size_t host;   /* bytes of the host that it may use beside them; SIZE_MAX: unknown */
    bool free;     /* `memory` is the free memory of `be`, not a number given by the user */
};

/* Returns a request for `gib` GiB of any machine; gib < 0: for the free memory of be and of this
 * host. */
struct memory_request memory_request(const struct config *config, struct backend *be, double gib);

/* Prints the memory of each part in each precision, the savings and cost of each option, the
 * largest micro-batches, and whether the run fits or which options make it fit. */
int memory_print_run(FILE *out, const struct memory_request *request, struct error *error);

/* Prints whether the run fits; if not, the options that make it fit as flags to paste, with their
 * costs. Returns RESULT_NONE if no options make it fit. */
int memory_print_fit(FILE *out, const struct memory_request *request, struct error *error);

/* Prints the result of memory_advise, whose return value is `status`: the options to set, without
 * costs; nothing if there are none; or, for RESULT_NONE, that no option helps. */
void memory_print_advice(FILE *out, const struct memory_advice *advice, int status);

/* Prints bytes per parameter by part, the plans of models of well-known sizes in several variants
 * with their saving over fp32, and their largest micro-batches. Sequences have the length of
 * config's, but at least 1024 tokens. */
int memory_print_sizes(FILE *out, const struct memory_request *request, struct error *error);
