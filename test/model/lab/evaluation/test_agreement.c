#include "model/lab/evaluation/agreement.h"

#include <criterion/criterion.h>
#include <math.h>

enum { VOCABULARY = 4 };

static void expect_near(double got, double expected, const char *what) {
    cr_expect_float_eq(got, expected, 1e-6, "%s: %g, expected %g", what, got, expected);
}

Test(agreement, of_equal_predictions) {
    const float logits[VOCABULARY] = {1, -INFINITY, 3, 0};
    struct agreement agreement;
    cr_assert_eq(agreement_open(&agreement, 2), 0);
    agreement_add(&agreement, logits, logits, VOCABULARY, 2);
    agreement_add(&agreement, logits, logits, VOCABULARY, 0);
    agreement_finish(&agreement);
    cr_expect_eq(agreement_mean(&agreement), 0);
    cr_expect_eq(agreement.kl, 0);
    cr_expect_eq(agreement.rank_changed, 0);
    cr_expect_eq(agreement.same_bits, 2);
    agreement_close(&agreement);
}

/* P of the sampler: 1/2, 1/4, 1/8, 1/8; of the trainer: 1/4, 1/2, 1/8, 1/8. A constant added to all
 * logits changes the bits but no probability. */
Test(agreement, of_known_predictions) {
    const float sampler[VOCABULARY] = {logf(4), logf(2), 0, 0};
    const float trainer[VOCABULARY] = {logf(2), logf(4), 0, 0};
    const float shifted[VOCABULARY] = {logf(4) + 1, logf(2) + 1, 1, 1};
    struct agreement agreement;
    cr_assert_eq(agreement_open(&agreement, 4), 0);
    agreement_add(&agreement, sampler, trainer, VOCABULARY, 0); /* log 2 apart, rank 0 and 1 */
    agreement_add(&agreement, sampler, trainer, VOCABULARY, 3); /* the same */
    agreement_add(&agreement, sampler, trainer, VOCABULARY, 1); /* log 2 apart, rank 1 and 0 */
    agreement_add(&agreement, sampler, shifted, VOCABULARY, 0);
    agreement_finish(&agreement);
    expect_near(agreement_mean(&agreement), log(2) / 2, "mean");
    expect_near(agreement_percentile(&agreement, 0.5), 0, "median");
    expect_near(agreement_percentile(&agreement, 0.75), log(2), "75 %");
    expect_near(agreement_percentile(&agreement, 1), log(2), "largest");
    expect_near(agreement.kl, 3 * (0.5 - 0.25) * log(2), "KL");
    cr_expect_eq(agreement.rank_changed, 2);
    cr_expect_eq(agreement.same_bits, 0);
    agreement_close(&agreement);
}

/* Another token is above it, but as many as before. */
Test(agreement, a_rank_counts_the_tokens_above) {
    const float sampler[VOCABULARY] = {3, 2, 1, 0}, trainer[VOCABULARY] = {1, 2, 3, 0};
    struct agreement agreement;
    cr_assert_eq(agreement_open(&agreement, 1), 0);
    agreement_add(&agreement, sampler, trainer, VOCABULARY, 1);
    cr_expect_eq(agreement.rank_changed, 0);
    agreement_close(&agreement);
}

Test(agreement, a_token_that_the_trainer_excludes_is_infinitely_far) {
    const float sampler[VOCABULARY] = {0, 0, 0, 0}, trainer[VOCABULARY] = {0, 0, 0, -INFINITY};
    struct agreement agreement;
    cr_assert_eq(agreement_open(&agreement, 1), 0);
    agreement_add(&agreement, sampler, trainer, VOCABULARY, 3);
    agreement_finish(&agreement);
    cr_expect(isinf(agreement_percentile(&agreement, 1)));
    cr_expect(isinf(agreement.kl) && agreement.kl > 0);
    agreement_close(&agreement);
}
