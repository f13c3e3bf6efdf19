/* Comparison of a group of runs with the reference group: figures and their statistical noise.
 *
 * Runs are paired by seed. Two runs of a seed begin with the same weights and read the same
 * batches, so batch noise is the same in both and cancels in their difference. Figures use the
 * steps that all compared runs have in common.
 *
 * window: number of averaged steps, 5 % of the common steps and at least 10. The loss differs by
 * several % from batch to batch; over 10 batches of the same text, two runs differ by some
 * hundredths of a %.
 *
 * final loss: mean over the last `window` steps.
 *
 * smoothed: mean over the `window` steps around a step.
 *
 * settled: step after which curves are judged, after the warmup and 10 % of the steps. Earlier, the
 * loss falls so fast that a single skipped step shifts the curve by a few %.
 *
 * A step whose loss is not finite in one of two paired runs is left out in both. */
#pragma once

#include "data/util/error.h"
#include "model/lab/compare/runs.h"
#include "data/util/statistics.h"

enum { COMPARE_REFERENCE, COMPARE_OTHER, COMPARE_SIDES };

/* Figures of one group, over all its runs. */
struct group_figures {
    int64_t planned_steps, last_step; /* smallest of all runs */
    int64_t steps;                    /* number of steps of all runs */
    int64_t skipped;                  /* number of skipped steps */
    int64_t searched;                 /* number of steps up to COMPARE_SEARCH_STEPS */
    int64_t skipped_in_search;        /* number of skipped steps among those */
    int64_t not_finite;  /* number of other steps whose loss or gradient norm is not finite */
    double tokens_per_s; /* median without the first steps; NaN: unknown */
    double tokens_per_s_quartiles[2]; /* half of the steps are between them */
    double memory_bytes;              /* maximum; NaN: unknown */
};

/* Number of first steps in which dynamic loss scaling may skip steps to find the scale. Twenty
 * halvings of the default 2^16 would give 2^-4, which has another cause. */
enum { COMPARE_SEARCH_STEPS = 20, COMPARE_WINDOWS_LEAST = 4 };

struct run_pair {
    const struct run_record *runs[COMPARE_SIDES];
    /* [steps] values; NaN on both sides if one is missing. */
    double *loss[COMPARE_SIDES], *norm[COMPARE_SIDES];
    int norms_not_finite, norms_zero; /* as in struct comparison */
    double *smoothed[COMPARE_SIDES];
};

struct comparison {
    const struct run_group *reference, *group;
    struct run_pair *pairs; /* stb_ds array */
    bool same_seeds;        /* false: runs are paired in order and read different batches */
    bool other_optimizer;   /* update rule, rate or another key of it differ from the reference's */
    bool other_objective;   /* training losses are of another kind than the reference's */
    bool other_validation;  /* validation losses too */
    struct group_figures figures;

    int steps; /* number of steps that all runs of all pairs have */
    double *step;
    int window;
    double settled;

    /* [steps] means over the pairs: smoothed losses, and their difference in %. */
    double *smoothed[COMPARE_SIDES], *percent;

    double training_loss[COMPARE_SIDES], validation_loss[COMPARE_SIDES];
    int64_t validation_step; /* last validation that all runs have; -1: none */
    struct difference training, validation;
    /* Difference of the smoothed losses after `settled`: largest absolute value, and largest value.
     * The choice of the maximum makes noise pass as real more often. */
    struct difference curve, curve_highest;
    double curve_step, curve_highest_step; /* their steps; NaN: no step after `settled` */

    /* Gradient norms, over steps that neither run skipped and whose reference norm is above 0;
     * means over the pairs. The other norm may be 0. Such a step counts in norm_steps and in the
     * median, with a ratio of 0, but not in geometric means, since 0 has no logarithm. */
    int norm_steps;
    int norms_zero;          /* number of those steps whose other norm is 0 */
    int norms_not_finite;    /* number of further steps whose other norm is not finite */
    double norm_correlation; /* over single steps; falls when correct runs drift apart */
    /* Correlation of geometric means over `window` steps: the common trend. NaN for fewer than
     * COMPARE_WINDOWS_LEAST windows. */
    double norm_smoothed_correlation;
    double norm_ratio;      /* geometric mean of the ratios of the steps; NaN: all are 0 */
    double norm_median;     /* median ratio */
    struct difference norm; /* difference of the median ratio from 1, in % */

    double speed_up;      /* tokens per second relative to the reference; 2: twice as fast */
    double memory_saving; /* in % of the reference's memory */
};

/* Compares group with reference, which may be the same. Fails if they have no step in common. */
int comparison_make(struct comparison *comparison, const struct run_group *reference,
                    const struct run_group *group, struct error *error);
void comparison_free(struct comparison *comparison);

/* Returns the median speed of a run without its first steps; NaN: unknown. */
double run_tokens_per_s(const struct run_record *run);

/* ---- speed at equal loss */

/* Speed at equal loss: tokens and time that a group needs to reach the validation loss of the
 * reference, so that a format that is faster but learns less per token shows what it gains.
 *
 * Target loss of a pair: the higher of the two runs' lowest validation losses. Both runs reach it.
 * The lowest loss is used instead of the last, because a run that overfits at its end would set a
 * target that both runs reach early.
 *
 * Tokens to the target: the validation curve, replaced by its running minimum, with linear
 * interpolation between two validations. The error is small if validations are frequent: the run
 * that sets the target is read at a validation, and interpolating a convex curve adds tokens to the
 * other.
 *
 * Time: those tokens divided by the run's own tokens per second.
 *
 * The run that reaches the target before its end has not finished the decay of its learning rate
 * there. The figures estimate what it costs to train the slower learner for longer, but do not
 * replace such a run. */

enum { EQUAL_LOSS_VALIDATIONS = 3, EQUAL_LOSS_TEXT_MAX = 400 };

/* The margins of the differences are the "consistent" ones of statistics.h. The reference's own
 * noise does not apply, because the target of each pair follows its runs. */
struct equal_loss {
    double loss;                    /* mean target of the pairs; NaN: no figures, text says why */
    struct difference tokens;       /* needed by the group, in % more than the reference */
    struct difference speed;        /* time of the reference / time of the group - 1, in % */
    char text[EQUAL_LOSS_TEXT_MAX]; /* one sentence with the figures, or with "-" and the reason */
};

/* Compares the pairs of a comparison. There are no figures if the groups share no seed or validate
 * on other text. The same holds if a run of any pair has fewer than EQUAL_LOSS_VALIDATIONS
 * validations, ends with a validation loss that is not below its first, or is below the target at
 * its first validation. */
void equal_loss_make(struct equal_loss *equal, const struct comparison *comparison);

/* Returns the tokens after which the running minimum of the validation loss reaches `loss`. NaN:
 * the run does not reach it, or is below it at its first validation. */
double tokens_to_loss(const struct run_record *run, double loss);
