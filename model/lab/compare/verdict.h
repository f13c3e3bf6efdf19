/* Verdict on a group of runs: checks of its difference from the reference, each with a limit. */
#pragma once

#include "model/lab/compare/comparison.h"

/* A loss that is lower by more than the limit passes as "better". Norms count in both directions.
 *
 * The default of `loss` is the validation protocol's; for fp8 the limit is twice as large, because
 * published differences are 0.25 to 1 % (Micikevicius et al. 2022, Peng et al. 2023, DeepSeek-AI
 * 2024). The other defaults allow correct runs to drift apart, as any two runs do that differ in
 * one bit: scripts/results/lab.md has the measurements. */
struct limits {
    double loss;        /* % of the final training and validation loss; twice that for fp8 */
    double curve;       /* % of the smoothed training loss at any step after `settled` */
    double norm;        /* % by which the median ratio of gradient norms may differ from 1 */
    double correlation; /* minimum correlation of smoothed gradient norms */
    /* % of skipped steps after the search for a loss scale; one per run is always allowed. The same
     * limit applies to steps whose gradient norm is 0 while the reference's is not. */
    double skipped;
    bool partial; /* unfinished runs are judged by the steps they have */
};

#define LIMITS_DEFAULT \
    ((struct limits){.loss = 0.5, .curve = 2, .norm = 5, .correlation = 0.9, .skipped = 1})

/* Checks of a verdict, in the order of its array. */
enum check_id {
    CHECK_FORMAT,
    CHECK_FINISHED,
    CHECK_FINITE,
    CHECK_TRAINING_LOSS,
    CHECK_VALIDATION_LOSS,
    CHECK_CURVE,
    CHECK_NORM,
    CHECK_CORRELATION,
    CHECK_SKIPPED,
    CHECKS
};

struct verdict {
    bool pass;
    int rank, ranked; /* place by loss, from 1, among those of other optimizers; 0: none */
    /* Array of {"name", "outcome", "value", "limit", "text", "rule"}: the result with its figures,
     * and the condition for passing. Outcomes besides "pass" and "fail" pass too: "better", a
     * lower loss; "noise", beyond the limit but within noise (statistics.h); "nothing", the figure
     * does not exist; "ranked", another optimizer, whose loss ranks it. The caller deletes it. */
    struct cJSON *checks;
};

/* Makes the verdict. The reference is compared with itself, which leaves the checks of its own
 * faults. */
void verdict_make(struct verdict *verdict, const struct comparison *comparison,
                  const struct limits *limits);

/* Ranks the groups whose optimizer differs from the reference's, and the reference: by validation
 * loss or, unless all have one, by training loss. comparisons and verdicts: [count]. */
void verdict_rank(struct verdict *verdicts, const struct comparison *comparisons, int count,
                  int reference);
