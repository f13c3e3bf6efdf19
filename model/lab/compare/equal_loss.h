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
#pragma once

#include "model/lab/compare/comparison.h"

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
