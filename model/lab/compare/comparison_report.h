/* Report of a comparison: groups of runs, their comparisons with one of them, and verdicts. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"
#include "model/lab/compare/comparison.h"
#include "model/lab/compare/equal_loss.h"
#include "model/lab/compare/run_groups.h"
#include "model/lab/compare/verdict.h"

struct comparison_report {
    struct run_group *groups;        /* stb_ds array */
    struct comparison *comparisons;  /* stb_ds array, one per group */
    struct verdict *verdicts;        /* stb_ds array, one per group */
    struct equal_loss *equal_losses; /* stb_ds array, one per group */
    int reference;                   /* index of the reference group */
    struct limits limits;
    struct cJSON *differences; /* result of config_differences */
    char **warnings;           /* stb_ds array of sentences about doubtful figures */
    /* Shell commands that made the runs and this comparison; optional. */
    const char *made_by, *command;
};

/* Makes a report. labels: see run_groups_make. reference: a label, or NULL for the group of the
 * first run. The runs must outlive the report. Fails if there is only one group, or no group with
 * that label; then there is nothing to free, but freeing is allowed. */
int comparison_report_make(struct comparison_report *report, const struct run_record *runs,
                           char *const *labels, int count, const char *reference,
                           const struct limits *limits, struct error *error);
void comparison_report_free(struct comparison_report *report);

bool comparison_report_passes(const struct comparison_report *report);
