/* Report of a comparison: groups of runs, their comparisons with one of them, verdicts and warnings
 * as one JSON object, and text for the terminal made from it. README.md lists its members. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"
#include "model/lab/compare/comparison.h"
#include "model/lab/compare/verdict.h"

struct comparison_options {
    const char *reference; /* label of the reference; NULL: the group of the first run */
    struct limits limits;
    const char *made_by; /* command that made the runs, or NULL */
};

/* Returns the report, to be deleted. labels: see run_groups_make. Returns NULL with a message if
 * there is only one group, no group with the reference's label, or no step in common. */
struct cJSON *comparison_report(const struct run_record *runs, char *const *labels, int count,
                                const struct comparison_options *options, struct error *error);

/* Prints a report. */
void comparison_print(FILE *out, const struct cJSON *report);
