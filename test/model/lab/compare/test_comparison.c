/* Figures of two groups of synthetic runs with known results. */
#include <stb/stb_ds.h>

#include "model/lab/compare/comparison.h"
#include "test/model/lab/compare/run_fixture.h"

TestSuite(comparison, .init = make_folder, .fini = remove_folder);

enum { SEEDS_MAX = 3 };

/* Records of two groups of up to SEEDS_MAX runs. */
static struct run_record records[2][SEEDS_MAX];
static struct run_group sides[2] = {{.label = "a"}, {.label = "b"}};
static struct comparison comparison;

static void add(int side, struct run_recipe recipe) {
    char name[40];
    int at = (int)arrlen(sides[side].runs);
    snprintf(name, sizeof name, "%s%d", sides[side].label, at);
    recipe.name = name;
    records[side][at] = made(recipe);
    arrput(sides[side].runs, &records[side][at]);
}

static void compare_them(void) {
    cr_assert_eq(comparison_make(&comparison, &sides[0], &sides[1], &error), 0, "%s", error.text);
}

static void compare_two(struct run_recipe a, struct run_recipe b) {
    add(0, a);
    add(1, b);
    compare_them();
}

static void finish(void) {
    comparison_free(&comparison);
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < arrlen(sides[side].runs); i++) run_record_close(&records[side][i]);
        arrfree(sides[side].runs);
    }
}

#define PLAIN ((struct run_recipe){.seed = 1, .eval_every = 25})

Test(comparison, with_itself_is_zero) {
    add(0, PLAIN);
    cr_assert_eq(comparison_make(&comparison, &sides[0], &sides[0], &error), 0, "%s", error.text);
    cr_expect_eq(comparison.steps, 100);
    cr_expect(comparison.same_seeds && arrlen(comparison.pairs) == 1);
    cr_expect(comparison.training.mean == 0 && comparison.validation.mean == 0);
    cr_expect(comparison.curve.mean == 0 && comparison.norm.mean == 0);
    expect_close(comparison.norm_correlation, 1, 1e-12, "correlation");
    cr_expect(comparison.norm_ratio == 1 && comparison.norm_steps == 100);
    cr_expect(comparison.speed_up == 1 && comparison.memory_saving == 0);
    cr_expect_eq(comparison.validation_step, 100);
    finish();
}

Test(comparison, a_constant_bias) {
    compare_two(PLAIN, (struct run_recipe){.seed = 1, .eval_every = 25, .bias = 1});
    expect_close(comparison.training.mean, 1, 1e-8, "training loss");
    expect_close(comparison.validation.mean, 1, 1e-8, "validation loss");
    expect_close(comparison.curve.mean, 1, 1e-8, "curve");
    for (int i = 0; i < comparison.steps; i++) {
        bool whole = i >= 5 && i < 96; /* the window of 10 is complete */
        cr_expect_eq(isfinite(comparison.percent[i]) != 0, whole, "step %d", i + 1);
        if (whole) expect_close(comparison.percent[i], 1, 1e-8, "a step of the curve");
    }
    finish();
}

/* The final loss is the mean over the last 10 steps, or over the last 5 % if these are more. */
Test(comparison, final_loss_and_its_window) {
    for (int steps = 100; steps <= 400; steps += 300) {
        int window = steps == 100 ? 10 : 20;
        double sum = 0;
        compare_two((struct run_recipe){.seed = 3, .steps = steps},
                    (struct run_recipe){.seed = 3, .steps = steps});
        for (int step = steps - window + 1; step <= steps; step++) sum += fixture_loss(3, step);
        cr_expect_eq(comparison.window, window);
        expect_close(comparison.training_loss[COMPARE_OTHER], sum / window, 1e-9, "final loss");
        finish();
    }
}

/* Batch noise of some percent is the same in both runs and cancels in the difference. */
Test(comparison, paired_noise_cancels) {
    compare_two((struct run_recipe){.seed = 5},
                (struct run_recipe){.seed = 5, .bias = 0.25, .shaken = 0.05});
    expect_close(comparison.training.mean, 0.25, 0.05, "training loss");
    finish();
}

/* A run with a bad start: the windows around steps 1 to 10 contain its first five steps. */
Test(comparison, the_curve_is_judged_once_settled) {
    add(0, PLAIN);
    add(1, PLAIN);
    for (int i = 0; i < 5; i++) records[1][0].steps[i].loss *= 2;
    compare_them();
    cr_expect_eq(comparison.settled, 10, "a tenth of the steps: %g", comparison.settled);
    cr_expect_gt(comparison.percent[9], 0);
    cr_expect_eq(comparison.curve.mean, 0, "%g", comparison.curve.mean);
    finish();
    compare_two((struct run_recipe){.seed = 1, .steps = 20},
                (struct run_recipe){.seed = 1, .steps = 20, .bias = 3});
    cr_expect_eq(comparison.settled, 4, "the warm-up: %g", comparison.settled);
    finish();
}

Test(comparison, where_the_curve_is_farthest) {
    add(0, PLAIN);
    add(1, PLAIN);
    for (int i = 0; i < 100; i++) {
        double percent = i >= 40 && i < 50 ? -2 : i >= 70 && i < 80 ? 1.5 : 0;
        records[1][0].steps[i].loss *= 1 + percent / 100;
    }
    compare_them();
    expect_close(comparison.curve.mean, -2, 1e-8, "farthest");
    cr_expect_eq(comparison.curve_step, 46, "%g", comparison.curve_step);
    expect_close(comparison.curve_highest.mean, 1.5, 1e-8, "highest");
    cr_expect_eq(comparison.curve_highest_step, 76, "%g", comparison.curve_highest_step);
    finish();
}

Test(comparison, gradient_norms) {
    compare_two(PLAIN, (struct run_recipe){.seed = 1, .norm_factor = 1.25});
    expect_close(comparison.norm.mean, 25, 1e-6, "median ratio");
    expect_close(comparison.norm_ratio, 1.25, 1e-8, "geometric mean");
    expect_close(comparison.norm_correlation, 1, 1e-9, "correlation");
    finish();
    /* Independent noise of the same size leaves a correlation of 1 / sqrt(2). */
    compare_two((struct run_recipe){.seed = 1, .steps = 4000},
                (struct run_recipe){.seed = 1, .steps = 4000, .norm_shaken = 0.4});
    expect_close(comparison.norm_correlation, sqrt(0.5), 0.03, "correlation");
    finish();
}

/* Noise of single steps, which is not significant, does not hide the common trend. */
Test(comparison, smoothed_norms) {
    add(0, (struct run_recipe){.seed = 1, .steps = 400});
    add(1, (struct run_recipe){.seed = 1, .steps = 400});
    for (int i = 0; i < 400; i++)
        for (int side = 0; side < 2; side++)
            records[side][0].steps[i].gradient_norm =
                exp(sin(i / 40.0) + 0.5 * fixture_noise(side, 9, i));
    compare_them();
    cr_expect_lt(comparison.norm_correlation, 0.8, "%g", comparison.norm_correlation);
    cr_expect_gt(comparison.norm_smoothed_correlation, 0.95, "%g",
                 comparison.norm_smoothed_correlation);
    finish();
    compare_two((struct run_recipe){.seed = 1, .steps = 40},
                (struct run_recipe){.seed = 1, .steps = 39});
    cr_expect(isnan(comparison.norm_smoothed_correlation), "39 steps are too few");
    finish();
    compare_two((struct run_recipe){.seed = 1, .steps = 40},
                (struct run_recipe){.seed = 1, .steps = 40, .norm_factor = 7});
    expect_close(comparison.norm_smoothed_correlation, 1, 1e-9, "40 steps");
    finish();
}

Test(comparison, median_and_geometric_mean_of_ratios_differ) {
    add(0, (struct run_recipe){.seed = 1, .steps = 5});
    add(1, (struct run_recipe){.seed = 1, .steps = 5});
    static const double factors[] = {1, 1, 2, 32, 1};
    for (int i = 0; i < 5; i++) records[1][0].steps[i].gradient_norm *= factors[i];
    compare_them();
    expect_close(comparison.norm.mean, 0, 1e-9, "median");
    expect_close(comparison.norm_ratio, pow(64, 0.2), 1e-8, "geometric mean");
    finish();
}

/* Zeros count in the median but have no logarithm. */
Test(comparison, norms_of_zero) {
    compare_two(PLAIN, (struct run_recipe){.seed = 1, .norm_factor = 1.5, .zeros_of_four = 1});
    cr_expect(comparison.norm_steps == 100 && comparison.norms_zero == 25);
    expect_close(comparison.norm.mean, 50, 1e-6, "median");
    expect_close(comparison.norm_ratio, 1.5, 1e-8, "geometric mean of the others");
    expect_close(comparison.norm_smoothed_correlation, 1, 1e-9, "of the same steps in both");
    cr_expect_lt(comparison.norm_correlation, 0.9, "step by step they count");
    finish();
    compare_two(PLAIN, (struct run_recipe){.seed = 1, .zeros_of_four = 4});
    cr_expect(comparison.norm_steps == 100 && comparison.norms_zero == 100);
    cr_expect_eq(comparison.norm.mean, -100, "%g", comparison.norm.mean);
    cr_expect(isnan(comparison.norm_ratio) && isnan(comparison.norm_smoothed_correlation));
    finish();
    /* A zero norm of the reference gives no ratio. */
    compare_two((struct run_recipe){.seed = 1, .zeros_of_four = 3}, PLAIN);
    cr_expect(comparison.norm_steps == 25 && comparison.norms_zero == 0);
    cr_expect(comparison.norm.mean == 0 && comparison.norm_ratio == 1);
    finish();
    compare_two((struct run_recipe){.seed = 1, .no_norm_from = 11, .no_norm_count = 10},
                (struct run_recipe){.seed = 1, .no_norm_from = 16, .no_norm_count = 10});
    cr_expect(comparison.norm_steps == 85 && comparison.norms_not_finite == 5);
    finish();
}

/* The level of the reference, from which the noise of norms is taken, is that of all its steps. */
Test(comparison, noise_of_norms_is_of_the_reference_alone) {
    struct difference noise[2];
    for (int zeros = 0; zeros < 2; zeros++) {
        for (int i = 0; i < 2; i++) {
            add(0, (struct run_recipe){.seed = i, .norm_factor = 1 + i});
            add(1,
                (struct run_recipe){.seed = i, .norm_factor = 1 + i, .zeros_of_four = 3 * zeros});
        }
        compare_them();
        noise[zeros] = comparison.norm;
        finish();
    }
    cr_expect_gt(noise[0].noise, 1);
    cr_expect_eq(noise[0].noise, noise[1].noise, "%g, %g", noise[0].noise, noise[1].noise);
}

Test(comparison, skipped_steps_have_no_norm) {
    add(0, PLAIN);
    add(1, PLAIN);
    records[0][0].steps[30].skipped = true; /* its norm is ignored */
    records[1][0].steps[60].gradient_norm = 0;
    compare_them();
    cr_expect_eq(comparison.norm_steps, 99);
    finish();
    compare_two((struct run_recipe){.seed = 1, .skipped_from = 30, .skipped_count = 2},
                (struct run_recipe){.seed = 1, .skipped_from = 1, .skipped_count = 4});
    cr_expect_eq(comparison.norm_steps, 94);
    cr_expect(comparison.norm_ratio == 1);
    struct group_figures figures = comparison.figures;
    cr_expect(figures.skipped == 4 && figures.skipped_in_search == 4);
    cr_expect(figures.steps == 100 && figures.searched == 20 && figures.not_finite == 0);
    finish();
    compare_two(PLAIN, (struct run_recipe){.seed = 1, .skipped_from = 20, .skipped_count = 3});
    cr_expect(comparison.figures.skipped == 3 && comparison.figures.skipped_in_search == 1);
    finish();
}

Test(comparison, losses_that_are_not_finite) {
    compare_two(PLAIN, (struct run_recipe){.seed = 1, .bias = 1, .lost_from = 40, .lost_count = 3});
    cr_expect_eq(comparison.figures.not_finite, 3);
    expect_close(comparison.training.mean, 1, 1e-8, "left out in both");
    expect_close(comparison.curve.mean, 1, 1e-8, "left out in both");
    finish();
    compare_two(PLAIN, (struct run_recipe){.seed = 1, .lost_from = 95, .lost_count = 6});
    cr_expect(isnan(comparison.training.mean), "%g", comparison.training.mean);
    finish();
    /* The loss of a skipped step is ignored. */
    compare_two(
        PLAIN,
        (struct run_recipe){
            .seed = 1, .skipped_from = 50, .skipped_count = 1, .lost_from = 50, .lost_count = 1});
    cr_expect_eq(comparison.figures.not_finite, 0);
    finish();
}

Test(comparison, different_lengths) {
    compare_two(PLAIN, (struct run_recipe){
                           .seed = 1, .steps = 60, .planned = 100, .bias = 2, .eval_every = 25});
    cr_expect(comparison.steps == 60 && comparison.step[59] == 60);
    expect_close(comparison.training.mean, 2, 1e-8, "over steps in common");
    cr_expect_eq(comparison.validation_step, 50);
    cr_expect(comparison.figures.last_step == 60 && comparison.figures.planned_steps == 100);
    finish();
}

Test(comparison, steps_that_are_missing_in_one) {
    add(0, PLAIN);
    add(1, PLAIN);
    arrdel(records[0][0].steps, 9);
    arrdel(records[1][0].steps, 0);
    compare_them();
    cr_expect_eq(comparison.steps, 98);
    cr_expect(comparison.step[0] == 2 && comparison.step[8] == 11);
    cr_expect(comparison.training.mean == 0 && comparison.curve.mean == 0);
    finish();
}

Test(comparison, nothing_in_common) {
    add(0, PLAIN);
    add(1, PLAIN);
    arrdeln(records[0][0].steps, 0, 50);
    arrdeln(records[1][0].steps, 50, 50);
    cr_expect_eq(comparison_make(&comparison, &sides[0], &sides[1], &error), -1);
    expect_said("a and b have no step in common");
    finish();
}

Test(comparison, without_validation) {
    compare_two(PLAIN, (struct run_recipe){.seed = 1});
    cr_expect(comparison.validation_step == -1 && isnan(comparison.validation.mean));
    finish();
}

Test(comparison, validation_by_itself) {
    compare_two(PLAIN, (struct run_recipe){.seed = 1, .eval_every = 20, .validation_bias = -3});
    expect_close(comparison.validation.mean, -3, 1e-8, "validation");
    expect_close(comparison.training.mean, 0, 1e-9, "training");
    finish();
}

Test(comparison, too_short_to_smooth) {
    compare_two((struct run_recipe){.seed = 1, .steps = 4},
                (struct run_recipe){.seed = 1, .steps = 4, .bias = 1});
    cr_expect(isnan(comparison.curve_step) && isnan(comparison.curve.mean));
    expect_close(comparison.training.mean, 1, 1e-8, "all steps there are");
    finish();
}

Test(comparison, speed_and_memory) {
    add(0, (struct run_recipe){.tokens_per_s = 1000, .memory_bytes = 4e6});
    add(1, (struct run_recipe){.tokens_per_s = 2500, .memory_bytes = 1e6});
    for (int i = 0; i < 10; i++) records[1][0].steps[i].tokens_per_s = 1;  /* warming up */
    for (int i = 50; i < 90; i++) records[1][0].steps[i].tokens_per_s = 9; /* disturbed */
    records[1][0].steps[3].memory_bytes = 3e6;
    compare_them();
    cr_expect_eq(comparison.figures.tokens_per_s, 2500);
    cr_expect_eq(comparison.speed_up, 2.5);
    /* 40 of the 90 warm steps are at 9: the lower quartile. */
    cr_expect_eq(comparison.figures.tokens_per_s_quartiles[0], 9);
    cr_expect_eq(comparison.figures.tokens_per_s_quartiles[1], 2500);
    cr_expect_eq(comparison.figures.memory_bytes, 3e6);
    expect_close(comparison.memory_saving, 25, 1e-9, "memory saved");
    finish();
}

/* ---- several seeds */

Test(comparison, pairs_by_seed) {
    for (int i = 0; i < 3; i++) {
        add(0, (struct run_recipe){.seed = 1 + i, .eval_every = 50});
        add(1, (struct run_recipe){.seed = 3 - i, .eval_every = 50, .bias = 3 - i});
    }
    compare_them();
    cr_assert(comparison.same_seeds && arrlen(comparison.pairs) == 3);
    expect_close(comparison.training.mean, 2, 1e-8, "mean of 1, 2 and 3 %");
    expect_close(comparison.training.scatter, 1, 1e-8, "scatter");
    expect_close(comparison.validation.mean, 2, 1e-8, "validation");
    expect_close(comparison.curve.mean, 2, 1e-8, "curve");
    expect_close(comparison.percent[50], 2, 1e-8, "curve");
    cr_expect_eq(comparison.norm_steps, 300);
    cr_expect_eq(comparison.figures.steps, 300);
    finish();
}

/* The noise is taken from the reference alone. */
Test(comparison, noise_of_the_reference) {
    double finals[3] = {0, 0, 0};
    for (int i = 0; i < 3; i++) {
        add(0, (struct run_recipe){.seed = i});
        add(1, (struct run_recipe){.seed = i, .bias = 10 * i});
        for (int step = 91; step <= 100; step++) finals[i] += fixture_loss(i, step) / 10;
    }
    compare_them();
    expect_close(comparison.training.noise, 100 * deviation_of(finals, 3) / mean_of(finals, 3),
                 1e-6, "noise");
    finish();
}

Test(comparison, only_seeds_in_common_count) {
    add(0, (struct run_recipe){.seed = 1});
    add(0, (struct run_recipe){.seed = 2});
    add(1, (struct run_recipe){.seed = 2, .bias = 1});
    add(1, (struct run_recipe){.seed = 9, .bias = 50});
    compare_them();
    cr_expect(comparison.same_seeds && arrlen(comparison.pairs) == 1);
    expect_close(comparison.training.mean, 1, 1e-8, "of seed 2");
    finish();
}

Test(comparison, no_seed_in_common) {
    compare_two((struct run_recipe){.seed = 1}, (struct run_recipe){.seed = 2});
    cr_expect(!comparison.same_seeds && arrlen(comparison.pairs) == 1);
    finish();
}
