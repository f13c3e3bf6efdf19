/* Verdicts on runs on both sides of each limit. */
#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/table.h"
#include "model/lab/compare/verdict.h"
#include "test/model/lab/compare/run_fixture.h"

static cJSON **all_checks; /* stb_ds array: those of all verdicts of a test */

static void close_test(void) {
    for (ptrdiff_t i = 0; i < arrlen(all_checks); i++) cJSON_Delete(all_checks[i]);
    arrfree(all_checks);
    remove_folder();
}

TestSuite(verdict, .init = make_folder, .fini = close_test);

static struct limits limits;
static int zero_step; /* step at which the other runs have a gradient norm of 0; 0: none */
static const char *last_text = ""; /* text of the last check that failed */

/* Returns a text of a check: its "name", "outcome", "text" or "rule". */
static const char *of(const struct verdict *verdict, int id, const char *key) {
    return json_text_at(cJSON_GetArrayItem(verdict->checks, id), key);
}

static bool failed(const struct verdict *verdict, int id) {
    return strcmp(of(verdict, id, "outcome"), "fail") == 0;
}

/* Makes the verdict on a run, or on several seeds, against a reference without faults. */
static struct verdict judge_seeds(struct run_recipe recipe, int seeds, const double *biases) {
    struct run_record records[2][4];
    struct run_group sides[2] = {{.label = "fp32"}, {.label = "bf16"}};
    struct comparison comparison;
    struct verdict verdict;
    for (int i = 0; i < seeds; i++) {
        struct run_recipe base = {.seed = i, .eval_every = 20, .name = "a"};
        recipe.seed = i;
        recipe.name = "b";
        if (biases) recipe.bias = biases[i];
        records[0][i] = made(base);
        records[1][i] = made(recipe);
        if (zero_step) records[1][i].steps[zero_step - 1].gradient_norm = 0;
        for (int side = 0; side < 2; side++) arrput(sides[side].runs, &records[side][i]);
    }
    cr_assert_eq(comparison_make(&comparison, &sides[0], &sides[1], &error), 0, "%s", error.text);
    verdict_make(&verdict, &comparison, &limits);
    cr_assert_eq(cJSON_GetArraySize(verdict.checks), CHECKS);
    arrput(all_checks, verdict.checks);
    for (int i = 0; i < CHECKS; i++) {
        cr_expect_gt(strlen(of(&verdict, i, "text")), 0, "%s: no words", of(&verdict, i, "name"));
        cr_expect_gt(strlen(of(&verdict, i, "rule")), 10, "%s", of(&verdict, i, "name"));
        if (failed(&verdict, i)) last_text = of(&verdict, i, "text");
    }
    comparison_free(&comparison);
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < seeds; i++) run_record_close(&records[side][i]);
        arrfree(sides[side].runs);
    }
    return verdict;
}

static struct verdict judge(struct run_recipe recipe) {
    return judge_seeds(recipe, 1, NULL);
}

/* Expects that exactly these checks fail. */
static void expect_failures(const struct verdict *verdict, unsigned expected) {
    for (int i = 0; i < CHECKS; i++)
        cr_expect_eq(failed(verdict, i), (expected >> i) & 1, "%s: %s", of(verdict, i, "name"),
                     of(verdict, i, "text"));
    cr_expect_eq(verdict->pass, expected == 0);
}

static void expect_judged(struct run_recipe recipe, unsigned expected) {
    struct verdict verdict = judge(recipe);
    expect_failures(&verdict, expected);
}

#define FINISHED    (1U << CHECK_FINISHED)
#define FORMAT      (1U << CHECK_FORMAT)
#define FINITE      (1U << CHECK_FINITE)
#define TRAINING    (1U << CHECK_TRAINING_LOSS)
#define VALIDATION  (1U << CHECK_VALIDATION_LOSS)
#define CURVE       (1U << CHECK_CURVE)
#define NORM        (1U << CHECK_NORM)
#define CORRELATION (1U << CHECK_CORRELATION)
#define SKIPPED     (1U << CHECK_SKIPPED)
#define DISTILLED   ", \"distill\": {\"logits\": \"x\", \"alpha\": 0.5, \"temperature\": 1}"

static void expect_word(const char *part) {
    cr_expect_not_null(strstr(last_text, part), "\"%s\" is not in: %s", part, last_text);
}

Test(verdict, the_same_passes) {
    limits = LIMITS_DEFAULT;
    expect_judged((struct run_recipe){.eval_every = 20}, 0);
}

Test(verdict, near_the_limit_of_losses) {
    limits = LIMITS_DEFAULT;
    expect_judged((struct run_recipe){.eval_every = 20, .bias = 0.49}, 0);
    expect_judged((struct run_recipe){.eval_every = 20, .bias = 0.51}, TRAINING | VALIDATION);
    expect_judged((struct run_recipe){.eval_every = 20, .bias = -0.49}, 0);
    expect_judged((struct run_recipe){.eval_every = 20, .bias = -0.51}, 0);
    expect_judged((struct run_recipe){.eval_every = 20, .validation_bias = 0.51}, VALIDATION);
    expect_word("+0.510 %");
    limits.loss = 0.6;
    expect_judged((struct run_recipe){.eval_every = 20, .bias = 0.51}, 0);
    expect_judged((struct run_recipe){.eval_every = 20, .bias = 0.61}, TRAINING | VALIDATION);
}

Test(verdict, fp8_may_be_twice_as_far) {
    limits = LIMITS_DEFAULT;
    struct run_recipe recipe = {.eval_every = 20, .precision = "fp8", .bias = 0.99};
    expect_judged(recipe, 0);
    recipe.bias = 1.01;
    expect_judged(recipe, TRAINING | VALIDATION);
    recipe.bias = -1.01;
    expect_judged(recipe, 0);
}

Test(verdict, lower_is_better) {
    static const enum check_id losses[] = {CHECK_TRAINING_LOSS, CHECK_VALIDATION_LOSS, CHECK_CURVE};
    limits = LIMITS_DEFAULT;
    struct verdict verdict = judge((struct run_recipe){.eval_every = 20, .bias = -30});
    expect_failures(&verdict, 0);
    for (int i = 0; i < 3; i++) cr_expect_str_eq(of(&verdict, losses[i], "outcome"), "better");
    verdict = judge((struct run_recipe){.eval_every = 20, .bias = -0.4});
    for (int i = 0; i < 3; i++) cr_expect_str_eq(of(&verdict, losses[i], "outcome"), "pass");
}

/* The objective of distillation is no cross entropy; its validation loss is one. */
Test(verdict, another_objective_is_not_compared) {
    limits = LIMITS_DEFAULT;
    struct run_recipe recipe = {.eval_every = 20, .bias = 3, .more = DISTILLED};
    struct verdict verdict = judge(recipe);
    expect_failures(&verdict, VALIDATION);
    cr_expect_str_eq(of(&verdict, CHECK_TRAINING_LOSS, "outcome"), "nothing");
    cr_expect_str_eq(of(&verdict, CHECK_CURVE, "outcome"), "nothing");
    recipe.more = ", \"objective\": {\"beta\": 0.5}";
    verdict = judge(recipe);
    expect_failures(&verdict, 0);
    cr_expect_str_eq(of(&verdict, CHECK_VALIDATION_LOSS, "outcome"), "nothing");
}

Test(verdict, near_the_limit_of_curves) {
    limits = LIMITS_DEFAULT;
    limits.loss = 50;
    double limit = limits.curve;
    expect_judged((struct run_recipe){.eval_every = 20, .bias = limit - 0.01}, 0);
    expect_judged((struct run_recipe){.eval_every = 20, .bias = limit + 0.01}, CURVE);
    expect_judged((struct run_recipe){.eval_every = 20, .bias = -limit - 0.01}, 0);
    expect_judged((struct run_recipe){.eval_every = 20, .bias = limit + 0.01}, CURVE);
    /* The curve is too high at one step, though at another it is farther below. */
    struct run_recipe both = {.bias_from = 60, .bias = limit + 0.01, .early_bias = -limit - 1};
    expect_judged(both, CURVE);
    both.bias = limit - 0.01;
    expect_judged(both, 0);
}

Test(verdict, near_the_limits_of_gradient_norms) {
    limits = LIMITS_DEFAULT;
    double limit = limits.norm / 100;
    expect_judged((struct run_recipe){.eval_every = 20, .norm_factor = 1 + limit - 0.001}, 0);
    expect_judged((struct run_recipe){.eval_every = 20, .norm_factor = 1 + limit + 0.001}, NORM);
    expect_judged((struct run_recipe){.eval_every = 20, .norm_factor = 1 - limit - 0.001}, NORM);
    limits.norm = 100;
    expect_judged((struct run_recipe){.eval_every = 20, .norm_shaken = 0.05}, 0);
    expect_judged((struct run_recipe){.eval_every = 20, .norm_shaken = 0.6}, CORRELATION);
    limits.correlation = -1;
    expect_judged((struct run_recipe){.eval_every = 20, .norm_shaken = 0.6}, 0);
}

/* Gradient norms of 0, as after underflow in 16 bit, must not be left out like missing values. */
Test(verdict, norms_of_zero_fail) {
    static const int shares[] = {4, 3, 1};
    limits = LIMITS_DEFAULT;
    for (int seeds = 1; seeds <= 3; seeds += 2)
        for (int i = 0; i < 3; i++) {
            struct run_recipe recipe = {.eval_every = 20, .zeros_of_four = shares[i]};
            char found[40];
            struct verdict verdict = judge_seeds(recipe, seeds, NULL);
            expect_failures(&verdict, NORM);
            snprintf(found, sizeof found, ", 0 in %d of %d steps", 25 * shares[i] * seeds,
                     100 * seeds);
            expect_word(found);
            cr_expect_null(strstr(last_text, "nan"), "%s", last_text);
        }
    expect_word("median ratio 1.0000"); /* one of four does not change the median */
}

Test(verdict, a_single_norm_of_zero_is_free) {
    limits = LIMITS_DEFAULT;
    zero_step = 40;
    expect_judged((struct run_recipe){.eval_every = 20}, 0);
    limits.skipped = 24.9;
    expect_judged((struct run_recipe){.eval_every = 20, .zeros_of_four = 1}, NORM);
    zero_step = 0;
    limits.skipped = 25;
    expect_judged((struct run_recipe){.eval_every = 20, .zeros_of_four = 1}, 0);
}

/* Norms that are not finite fail where the reference has a norm. Without comparable steps norms are
 * not judged. */
Test(verdict, norms_that_are_not_finite) {
    limits = LIMITS_DEFAULT;
    expect_judged((struct run_recipe){.no_norm_from = 1, .no_norm_count = 100}, FINITE | NORM);
    expect_word("not finite in 100 steps in which the reference's is");
    expect_judged((struct run_recipe){.no_norm_from = 7, .no_norm_count = 1}, FINITE | NORM);
    expect_word("not finite in 1 step in which");
    limits.skipped = 100;
    struct verdict verdict =
        judge((struct run_recipe){.skipped_from = 1, .skipped_count = 100, .eval_every = 20});
    cr_expect_str_eq(of(&verdict, CHECK_NORM, "outcome"), "nothing");
}

Test(verdict, sixteen_bit_by_name_only) {
    limits = LIMITS_DEFAULT;
    struct run_recipe recipe = {.precision = "bf16",
                                .more = ", \"autocast\": {\"enabled\": false}"};
    expect_judged(recipe, FORMAT);
    expect_word("autocast.enabled is false");
    recipe.precision = "fp32";
    expect_judged(recipe, 0);
    recipe.precision = "bf16";
    recipe.more = ", \"autocast\": {\"enabled\": true}";
    expect_judged(recipe, 0);
}

Test(verdict, near_the_limit_of_skipped_steps) {
    limits = LIMITS_DEFAULT;
    struct run_recipe recipe = {.eval_every = 20, .skipped_from = 1, .skipped_count = 20};
    expect_judged(recipe, 0); /* the search for a loss scale */
    recipe.skipped_count = 21;
    expect_judged(recipe, 0); /* and one allowed skip */
    recipe.skipped_count = 22;
    expect_judged(recipe, SKIPPED);
    expect_word("22 of 100 steps, 20 of them up to step 20");
    recipe = (struct run_recipe){.eval_every = 20, .skipped_from = 50, .skipped_count = 4};
    limits.skipped = 5;
    expect_judged(recipe, 0); /* 4 of 80 */
    limits.skipped = 4.9;
    expect_judged(recipe, SKIPPED);
}

Test(verdict, unfinished) {
    limits = LIMITS_DEFAULT;
    expect_judged((struct run_recipe){.eval_every = 20, .steps = 60, .planned = 100}, FINISHED);
    expect_word("60 of 100 steps only");
    limits.partial = true;
    expect_judged((struct run_recipe){.eval_every = 20, .steps = 60, .planned = 100}, 0);
}

Test(verdict, losses_that_are_not_finite) {
    limits = LIMITS_DEFAULT;
    expect_judged((struct run_recipe){.eval_every = 20, .lost_from = 50, .lost_count = 1}, FINITE);
    expect_word("1 step whose");
    expect_judged((struct run_recipe){.eval_every = 20, .lost_from = 60, .lost_count = 41},
                  FINITE | TRAINING);
    expect_judged((struct run_recipe){.eval_every = 20, .validation_bias = (double)NAN},
                  VALIDATION);
    expect_word("not finite at step 100");
}

Test(verdict, missing_figures_pass) {
    limits = LIMITS_DEFAULT;
    struct verdict verdict = judge((struct run_recipe){.steps = 4, .eval_every = 0});
    expect_failures(&verdict, 0);
    cr_expect_str_eq(of(&verdict, CHECK_VALIDATION_LOSS, "outcome"), "nothing");
    cr_expect_str_eq(of(&verdict, CHECK_CURVE, "outcome"), "nothing");
}

Test(verdict, consistent_over_seeds_fails) {
    static const double biases[] = {0.9, 1.1, 1.0};
    limits = LIMITS_DEFAULT;
    struct verdict verdict = judge_seeds((struct run_recipe){.eval_every = 20}, 3, biases);
    expect_failures(&verdict, TRAINING | VALIDATION);
    expect_word("real");
}

Test(verdict, beyond_the_limit_but_noise_passes) {
    static const double biases[] = {-0.6, 2.2, 0.3};
    limits = LIMITS_DEFAULT;
    limits.curve = 100;
    struct verdict verdict = judge_seeds((struct run_recipe){.eval_every = 20}, 3, biases);
    cr_expect_str_eq(of(&verdict, CHECK_VALIDATION_LOSS, "outcome"), "noise");
    cr_expect_not_null(strstr(of(&verdict, CHECK_VALIDATION_LOSS, "text"), "within noise"));
    cr_expect(verdict.pass);
}

Test(verdict, one_outlier_seed_fails) {
    static const double biases[] = {0, 0, 12};
    limits = LIMITS_DEFAULT;
    struct verdict verdict = judge_seeds((struct run_recipe){.eval_every = 20}, 3, biases);
    cr_expect_not(verdict.pass);
    cr_expect_str_eq(of(&verdict, CHECK_VALIDATION_LOSS, "outcome"), "fail");
}

Test(verdict, rules_name_the_limits) {
    limits = LIMITS_DEFAULT;
    limits.loss = 0.125;
    limits.skipped = 7;
    struct verdict verdict = judge((struct run_recipe){.eval_every = 20});
    cr_expect_not_null(strstr(of(&verdict, CHECK_TRAINING_LOSS, "rule"), "at most 0.125 % above"));
    cr_expect_not_null(strstr(of(&verdict, CHECK_SKIPPED, "rule"), "at most 7 %"));
}

/* A better optimizer lowers the loss beyond any limit and changes gradient norms. */
Test(verdict, another_rate_is_ranked) {
    limits = LIMITS_DEFAULT;
    struct run_recipe better = {.eval_every = 20, .bias = -3, .norm_factor = 1.1414};
    expect_judged(better, NORM);
    better.lr = 0.01;
    struct verdict verdict = judge(better);
    expect_failures(&verdict, 0);
    static const enum check_id losses[] = {CHECK_TRAINING_LOSS, CHECK_VALIDATION_LOSS, CHECK_CURVE};
    for (int i = 0; i < 3; i++) cr_expect_str_eq(of(&verdict, losses[i], "outcome"), "ranked");
    cr_expect_str_eq(of(&verdict, CHECK_NORM, "outcome"), "nothing");
    cr_expect_str_eq(of(&verdict, CHECK_CORRELATION, "outcome"), "nothing");
    better.lost_from = better.no_norm_from = 80; /* it diverges */
    better.lost_count = better.no_norm_count = 21;
    expect_judged(better, FINITE | TRAINING);
}
