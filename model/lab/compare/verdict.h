/* May a group of runs stand for the reference? The validation protocol as checks with limits. */
#pragma once

#include "model/lab/compare/comparison.h"

/* Differences count in both directions: a run that follows the reference has its loss, and one
 * whose loss is lower by more than the limit computes something else, if perhaps better. With
 * lower_is_fine a lower loss passes.
 *
 * The default of `loss` is the validation protocol's; the others leave room for right runs that
 * drift apart, as any two do that differ in a bit. Seen with bf16 and fp16 against fp32 on a CPU:
 *
 *   3.3 M parameters, 400 steps of 2048 bytes, lr 1e-3 (configs/fp32.json)
 *       losses within 0.001 % on tinyshakespeare (a seed) and within 0.31 % on tales (3 seeds),
 *       curves 0.44 %, median ratio of norms 0.9 %, smoothed correlation at least 0.977
 *   0.1 M parameters, 1000 steps of 1024 bytes, lr 3e-3: noisy on purpose, 8 seeds
 *       losses within 2.2 %, curves 2.2 %, median ratio 3.8 %, smoothed correlation at least 0.968;
 *       step by step the norms are as good as unrelated in the second half (0.1 to 0.9), which is
 *       why that correlation has no limit; another seed of fp32 moves the loss by 0.9 %
 *   the same in fp16 at a loss scale of 0.001, so that gradients are lost
 *       the loss is 112 % higher, norms 2.4 times as large, smoothed correlation 0.914
 *
 * fp8 may be twice as far in the final losses, 1 %: its values are rounded to a sixteenth, and what
 * others publish of it is 0.25 to 1 % (Micikevicius et al. 2022, Peng et al. 2023, DeepSeek-AI
 * 2024).
 *
 * On the noisy model a single seed fails the 0.5 % in 9 cases of 16, though nothing is wrong; three
 * seeds in 9 of 112, four in 6 of 140. A bias of 1 % planted into any run of the large one, or into
 * copies of the reference, fails with one seed and with several. */
struct limits {
    double loss;        /* %, of the final training and validation loss; fp8 may have twice that */
    double curve;       /* %, of the smoothed training loss anywhere once settled */
    double norm;        /* %, of the median ratio of gradient norms from 1 */
    double correlation; /* of smoothed gradient norms, at least */
    /* %, of the steps after the search for a loss scale; one is always free. Likewise of the steps
     * in which the gradient norm is 0, though that of the reference is not. */
    double skipped;
    bool partial; /* runs that have not finished are judged as far as they came */
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
    CHECK_NOISE,  /* beyond the limit, but not real (statistics.h): passes */
    CHECK_NOTHING /* there is no such figure: passes */
};

enum { CHECK_TEXT_MAX = 200 };

struct check {
    enum check_outcome outcome;
    double value, limit;       /* NaN where there is none */
    char text[CHECK_TEXT_MAX]; /* the finding, in words and figures */
    char rule[CHECK_TEXT_MAX]; /* the condition for passing */
};

struct verdict {
    bool pass;
    struct check checks[CHECKS];
};

/* Whether a group is 16-bit by name only, because its config has autocast.enabled=false. */
bool verdict_only_named(const struct run_group *group);

/* The reference is held against itself: its own troubles remain. */
void verdict_make(struct verdict *verdict, const struct comparison *comparison,
                  const struct limits *limits);

const char *check_name(enum check_id id);                   /* "training loss" */
const char *check_outcome_name(enum check_outcome outcome); /* "pass", "FAIL", ... */
