/* Groups of runs against one of them, and in which words that is told. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"
#include "model/lab/compare/comparison.h"
#include "model/lab/compare/run_groups.h"
#include "model/lab/compare/verdict.h"

struct comparison_report {
    struct run_group *groups;       /* stb_ds array */
    struct comparison *comparisons; /* stb_ds array, one for each group */
    struct verdict *verdicts;       /* likewise */
    int reference;                  /* index of a group */
    struct limits limits;
    struct config_difference *differences;
    char **warnings; /* stb_ds array: what makes figures less worth, in sentences */
    /* Optional, shell commands: what made the runs, and this comparison of them. */
    const char *made_by, *command;
};

/* labels as run_groups_make has them; reference: a label, or NULL for the group of the first run.
 * The runs must outlive the report. Fails, with nothing to free (though freeing is harmless), when
 * there is but one group, or no group of that label. */
int comparison_report_make(struct comparison_report *report, const struct run_record *runs,
                           char *const *labels, int count, const char *reference,
                           const struct limits *limits, struct error *error);
void comparison_report_free(struct comparison_report *report);

bool comparison_report_passes(const struct comparison_report *report);

/* "reference", "pass" or "FAIL". A reference with troubles of its own is a failure. */
const char *comparison_report_word(const struct comparison_report *report, int group);
