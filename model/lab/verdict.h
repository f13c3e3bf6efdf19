/* May a group of runs stand for the reference? The validation protocol as checks with limits. */
#ifndef MODEL_LAB_VERDICT_H
#define MODEL_LAB_VERDICT_H

#include "model/lab/comparison.h"

/* Differences count in both directions: a run that follows the reference has its loss, and one
 * whose loss is lower by more than the limit computes something else, if perhaps better. With
 * lower_is_fine a lower loss passes. */
struct limits {
    double loss;        /* %, of the final training and validation loss */
    double curve;       /* %, of the smoothed training loss anywhere once settled */
    double norm;        /* %, of the median ratio of gradient norms from 1 */
    double correlation; /* of gradient norms, at least */
    double skipped;     /* %, of the steps after the search for a loss scale; one is always free */
    bool partial;       /* runs that have not finished are judged as far as they came */
    bool lower_is_fine;
};

/* EVIDENCE */
#define LIMITS_DEFAULT \
    ((struct limits){.loss = 0.5, .curve = 2, .norm = 5, .correlation = 0.9, .skipped = 1})

enum check_id {
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
    char text[CHECK_TEXT_MAX]; /* what was found, in words and figures */
};

struct verdict {
    bool pass;
    struct check checks[CHECKS];
};

/* The reference is held against itself: its own troubles remain. */
void verdict_make(struct verdict *verdict, const struct comparison *comparison,
                  const struct limits *limits);

const char *check_name(enum check_id id);                   /* "training loss" */
const char *check_outcome_name(enum check_outcome outcome); /* "pass", "FAIL", ... */

/* What a check asks for, as a sentence without its full stop; returns text. */
const char *check_rule(char text[CHECK_TEXT_MAX], enum check_id id, const struct limits *limits);

#endif
