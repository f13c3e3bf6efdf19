/* Runs in trouble: divergence to a finite loss, and a loss scale below 1. */
#include <math.h>

#include "model/cli/divergence.h"

#include "model/config/config_keys.h"
#include "test/model/cli/program_fixture.h"

TestSuite(divergence, .init = set_up, .fini = remove_folder);

/* Counts the steps of a constant loss, after a first one, until training has diverged; 0: never. */
static int steps_until(const struct config *config, double first, double loss) {
    struct divergence divergence = {0};
    if (divergence_watch(&divergence, config, first)) return -1;
    for (int i = 1; i <= 100; i++)
        if (divergence_watch(&divergence, config, loss)) return i;
    return 0;
}

/* ln 256 is 5.545, ln 50257 is 10.825. */
Test(divergence, of_language_models_is_a_loss_above_chance_and_the_first) {
    struct config config;
    config_defaults(&config);
    config.model.vocab_size = 256;
    cr_expect_eq(steps_until(&config, 5.54, 6.5), 0);
    cr_expect_eq(steps_until(&config, 5.54, 6.6), DIVERGENCE_STEPS);
    cr_expect_eq(steps_until(&config, 2.0, 6.5), 0, "a fine-tune");
    cr_expect_eq(steps_until(&config, 9.0, 9.9), 0, "a fine-tune that begins badly");
    cr_expect_eq(steps_until(&config, 9.0, 10.1), DIVERGENCE_STEPS);
    cr_expect_eq(steps_until(&config, 3000, 2900), DIVERGENCE_STEPS - 1, "a resume");
    cr_expect_eq(steps_until(&config, (double)NAN, 6.6), DIVERGENCE_STEPS);
    cr_expect_eq(steps_until(&config, (double)INFINITY, 12), DIVERGENCE_STEPS);
    cr_expect_eq(steps_until(&config, 5.54, (double)NAN), 0, "an overflow that is skipped");
    cr_expect_eq(steps_until(&config, 5.54, (double)INFINITY), 0, "one that saving.c warns of");
    config.model.vocab_size = 50257;
    cr_expect_eq(steps_until(&config, 16, 16.9), 0, "random tokens in a trained model");
}

Test(divergence, does_not_mistake_a_spike) {
    struct divergence divergence = {0};
    struct config config;
    config_defaults(&config);
    for (int i = 0; i < 1000; i++)
        cr_expect_not(
            divergence_watch(&divergence, &config, i % DIVERGENCE_STEPS == 0 ? 2.0 : 1e6));
}

/* Losses on pairs start at log 2, at 1 / (4 beta^2) with ipo: 2,500 if beta is 0.01. */
Test(divergence, of_pairs_is_far_above_their_first_loss) {
    struct config config;
    config_defaults(&config);
    config.model.vocab_size = 50257;
    for (int i = CONFIG_OBJECTIVE_LANGUAGE + 1; i <= CONFIG_OBJECTIVE_KTO; i++) {
        config.train.objective = (enum config_objective)i;
        config.objective.beta = i == CONFIG_OBJECTIVE_IPO ? 0.01 : 0.1;
        const double first = i == CONFIG_OBJECTIVE_IPO ? 2500 : 0.6931;
        cr_expect_eq(steps_until(&config, first, 2 * first), 0, "objective %d", i);
        cr_expect_eq(steps_until(&config, first, 1e5), DIVERGENCE_STEPS, "objective %d", i);
    }
    config.train.objective = CONFIG_OBJECTIVE_KTO;
    config.objective.undesirable_weight = 100;
    cr_expect_eq(steps_until(&config, 50, 100), 0, "KTO's losses are at most their weights");
    config.train.objective = CONFIG_OBJECTIVE_LANGUAGE;
    config.distill_top = 8;
    config.distill.temperature = 4;
    cr_expect_eq(steps_until(&config, 0.1, 16 * 10.8), 0, "a divergence of ln V at temperature 4");
}

static int count_of(const char *text) {
    int count = 0;
    for (const char *at = error_text; (at = strstr(at, text)); at++) count++;
    return count;
}

#define FP16 "--config|tiny.json|--set|precision=fp16|--set|sample.every=0|--set|train.steps="

/* Warns of a scale below 1 also where it does not fall but begins there. */
Test(divergence, a_loss_scale_below_1_is_named_at_the_start) {
    expect_exit(FP16 "4|--set|loss_scale.init_scale=0.25", 0);
    cr_expect_eq(count_of("step 0: the loss scale is 0.25, below 1"), 1, "%s", error_text);
    cr_expect_eq(count_of("loss scale is"), 1, "%s", error_text);
    expect_exit(FP16 "6|--resume", 0);
    cr_expect_eq(count_of("step 4: the loss scale is 0.25, below 1"), 1, "%s", error_text);
    expect_exit("--audit|--from|a/run|--precision|fp16|--repetitions|1", 0);
    cr_expect_not_null(strstr(out_text, "This run is at 0.25: "), "%s", out_text);
    cr_expect_not_null(strstr(out_text, "at 2^-2."), "%s", out_text);
    expect_exit(FP16 "4|--set|name=b|--set|loss_scale.init_scale=1", 0);
    cr_expect_eq(count_of("loss scale is"), 0, "%s", error_text);
    expect_exit("--config|tiny.json|--set|sample.every=0|--set|train.steps=2|--set|name=c", 0);
    cr_expect_eq(count_of("loss scale is"), 0, "%s", error_text);
}

#define LONG "--config|tiny.json|--set|train.steps=60|--set|sample.every=0"
#define DIVERGING \
    LONG "|--set|optimizer.lr=10|--set|optimizer.min_lr=10|--set|optimizer.grad_clip=0"

Test(divergence, ends_a_run_with_a_failure) {
    expect_error(DIVERGING, 1, "training diverges: the last ");
    cr_expect_not_null(strstr(error_text, "warning: step "), "%s", error_text);
    cr_expect_eq(last_step("a/run"), 60);
    cr_expect(file_exists(in_folder("a/run/checkpoints/step-00000060")));
    expect_error(DIVERGING "|--resume|--set|train.steps=90", 1, "training diverges");
    expect_exit(LONG "|--set|name=b", 0);
    cr_expect_null(strstr(error_text, "diverges"), "%s", error_text);
}
