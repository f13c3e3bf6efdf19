/* Verdict on a group of runs: checks of its difference from the reference, each with a limit. */
#pragma once

#include "model/lab/compare/comparison.h"

/* Differences count in both directions: a loss that is lower by more than the limit also means that
 * the run computes something else. With lower_is_fine a lower loss passes.
 *
 * The default of `loss` is the validation protocol's. The other defaults allow correct runs to
 * drift apart, as any two runs do that differ in one bit. Measured for bf16 and fp16 relative to
 * fp32, on a CPU:
 *
 *   3.3 M parameters, 400 steps of 2048 bytes, lr 1e-3 (configs/fp32.json)
 *       losses within 0.001 % on tinyshakespeare (1 seed) and within 0.31 % on tales (3 seeds),
 *       curves 0.44 %, median ratio of norms 0.9 %, smoothed correlation at least 0.977
 *   0.1 M parameters, 1000 steps of 1024 bytes, lr 3e-3: a deliberately noisy model, 8 seeds
 *       losses within 2.2 %, curves 2.2 %, median ratio 3.8 %, smoothed correlation at least 0.968;
 *       the correlation over single steps varies from 0.1 to 0.9 in the second half, so it has no
 *       limit; another seed of fp32 changes the loss by 0.9 %
 *   the same model in fp16 at a loss scale of 0.001, so that gradients underflow
 *       the loss is 112 % higher, norms 2.4 times as large, smoothed correlation 0.914
 *
 * For fp8 the limit of the final losses is twice as large, 1 %: its values are rounded to a
 * sixteenth, and published differences are 0.25 to 1 % (Micikevicius et al. 2022, Peng et al. 2023,
 * DeepSeek-AI 2024).
 *
 * On the noisy model a correct single seed fails the 0.5 % in 9 of 16 cases, three seeds in 9 of
 * 112, four in 6 of 140. A bias of 1 % added to any run of the large model, or to copies of the
 * reference, fails with one seed and with several. */
struct limits {
    double loss;        /* % of the final training and validation loss; twice that for fp8 */
    double curve;       /* % of the smoothed training loss at any step after `settled` */
    double norm;        /* % by which the median ratio of gradient norms may differ from 1 */
    double correlation; /* minimum correlation of smoothed gradient norms */
    /* % of skipped steps after the search for a loss scale; one per run is always allowed. The same
     * limit applies to steps whose gradient norm is 0 while the reference's is not. */
    double skipped;
    bool partial; /* unfinished runs are judged by the steps they have */
    bool lower_is_fine;
};

#define LIMITS_DEFAULT \
    ((struct limits){.loss = 0.5, .curve = 2, .norm = 5, .correlation = 0.9, .skipped = 1})

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

enum check_outcome {
    CHECK_PASS,
    CHECK_FAIL,
    CHECK_NOISE,  /* beyond the limit but within noise (statistics.h): passes */
    CHECK_NOTHING /* the figure does not exist: passes */
};

enum { CHECK_TEXT_MAX = 200 };

struct check {
    enum check_outcome outcome;
    double value, limit;       /* NaN: none */
    char text[CHECK_TEXT_MAX]; /* result, with its figures */
    char rule[CHECK_TEXT_MAX]; /* condition for passing */
};

struct verdict {
    bool pass;
    struct check checks[CHECKS];
};

/* True if a group with a 16-bit precision computes in fp32, because autocast.enabled is false. */
bool verdict_only_named(const struct run_group *group);

/* Makes the verdict. The reference is compared with itself, which leaves the checks of its own
 * faults. */
void verdict_make(struct verdict *verdict, const struct comparison *comparison,
                  const struct limits *limits);

const char *check_name(enum check_id id);                   /* "training loss" */
const char *check_outcome_name(enum check_outcome outcome); /* "pass", "fail", ... */
