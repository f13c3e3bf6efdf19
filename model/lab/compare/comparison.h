/* A group of runs measured against the reference group: figures, and what they are worth.
 *
 * Runs are paired by seed. Two runs of a seed begin with the same weights and read the same
 * batches, so the noise of the batches is the same in both and cancels in their difference. Figures
 * are taken over the steps that all runs concerned have in common.
 *
 *   window       5 % of the common steps, at least 10: the steps that are averaged. The loss of a
 *                batch differs by several % from that of the next; 10 batches of the same text in
 *                both runs leave differences of some hundredths of a %.
 *   final loss   mean over the last `window` steps
 *   smoothed     mean over the `window` steps around a step
 *   settled      the step after which curves are held against a limit: past the warm-up, and past
 *                10 % of the steps. Before, the loss falls so fast that a single skipped step
 *                shifts the curve by a few %.
 *
 * A step whose loss is not finite in one of the two runs is left out in both. */
#pragma once

#include "data/util/error.h"
#include "model/lab/compare/run_groups.h"
#include "data/util/statistics.h"

enum { COMPARE_REFERENCE, COMPARE_OTHER, COMPARE_SIDES };

/* What a group shows by itself, all its runs together. */
struct group_figures {
    int64_t planned_steps, last_step; /* the fewest of its runs */
    int64_t steps;                    /* of all runs */
    int64_t skipped;                  /* of these */
    int64_t searched;                 /* of these, steps up to COMPARE_SEARCH_STEPS */
    int64_t skipped_in_search;
    int64_t lost;        /* steps not skipped whose loss or gradient norm is not finite */
    double tokens_per_s; /* median, without the first steps; NaN: unknown, likewise below */
    double memory_bytes; /* the largest */
    /* Of the first run; NaN where the scale is 1 all the time. */
    double scale_first, scale_last, scale_smallest, scale_largest, scale_changes;
};

/* Steps in which fp16 looks for its loss scale: skipping there is how it works. Halving the default
 * of 2^16 twenty times would reach 2^-4, where something else is wrong. */
enum { COMPARE_SEARCH_STEPS = 20, COMPARE_WINDOWS_LEAST = 4 };

struct run_pair {
    const struct run_record *runs[COMPARE_SIDES];
    /* [steps] each; NaN in both where either is missing. */
    double *loss[COMPARE_SIDES], *norm[COMPARE_SIDES];
    int norms_lost, norms_zero; /* as in struct comparison */
    double *smoothed[COMPARE_SIDES];
};

struct comparison {
    const struct run_group *reference, *group;
    struct run_pair *pairs; /* stb_ds array */
    bool same_seeds;        /* else the runs were paired in order, and read different batches */
    struct group_figures figures;

    int steps; /* common to all runs of all pairs */
    double *step;
    int window;
    double settled;

    /* Means over the pairs, [steps]. */
    double *smoothed[COMPARE_SIDES], *percent;

    double training_loss[COMPARE_SIDES], validation_loss[COMPARE_SIDES];
    int64_t validation_step; /* the last that all have; -1: none */
    struct difference training, validation;
    /* Of the smoothed losses once settled: where it is farthest from 0, and where it is highest.
     * Chosen as the largest, it is called real too easily. */
    struct difference curve, curve_highest;
    double curve_step, curve_highest_step; /* NaN: no step is that late */

    /* Of gradient norms, over steps that neither run skipped and in which that of the reference is
     * above 0; means over the pairs. The other's may be 0: such a step counts in norm_steps and
     * with a ratio of 0 in the median, but has no logarithm, so that geometric means leave it out.
     */
    int norm_steps;
    int norms_zero; /* of these, the other's is 0 */
    int norms_lost; /* besides these: the reference has a norm, the other's is not finite */
    double norm_correlation; /* step by step: tells when right runs drift apart */
    /* Of geometric means over `window` steps: tells whether they go the same way; NaN for fewer
     * than COMPARE_WINDOWS_LEAST windows. */
    double norm_smoothed_correlation;
    double norm_ratio;      /* geometric mean of the ratios of the steps; NaN: all are 0 */
    double norm_median;     /* median ratio */
    struct difference norm; /* of the median ratio from 1, in % */

    double speed_up;      /* tokens per second against the reference's; 2: twice as fast */
    double memory_saving; /* % of the reference's */
};

/* group may be the reference itself. Fails when the two have no step in common. */
int comparison_make(struct comparison *comparison, const struct run_group *reference,
                    const struct run_group *group, struct error *error);
void comparison_free(struct comparison *comparison);
