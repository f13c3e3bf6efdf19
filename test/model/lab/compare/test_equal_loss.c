/* Tokens and time to an equal validation loss, of hand-made curves with known answers. */
#include <stb/stb_ds.h>

#include "model/lab/compare/comparison.h"
#include "test/model/lab/compare/run_fixture.h"

TestSuite(equal_loss, .init = make_folder, .fini = remove_folder);

enum { SEEDS_MAX = 3, POINTS_MAX = 6 };

/* Validations of a run, 100 tokens apart. A loss of 0 ends the list. */
struct curve {
    double losses[POINTS_MAX];
};

static struct run_record records[COMPARE_SIDES][SEEDS_MAX];
static struct run_group sides[COMPARE_SIDES] = {{.label = "a"}, {.label = "b"}};
static struct comparison comparison;
static struct equal_loss equal;

static void set_curve(struct run_record *run, struct curve curve) {
    for (int i = 0; i < POINTS_MAX && curve.losses[i] != 0; i++)
        arrput(run->validations,
               ((struct run_validation){i + 1, curve.losses[i], 100.0 * (i + 1)}));
}

static void add(int side, struct run_recipe recipe, struct curve curve) {
    char name[40];
    int at = (int)arrlen(sides[side].runs);
    snprintf(name, sizeof name, "%s%d", sides[side].label, at);
    recipe.name = name;
    records[side][at] = made(recipe);
    set_curve(&records[side][at], curve);
    arrput(sides[side].runs, &records[side][at]);
}

/* Adds a pair of runs; the other one trains three times as many tokens per second. */
static void add_pair(int seed, struct curve reference, struct curve other) {
    add(COMPARE_REFERENCE, (struct run_recipe){.seed = seed}, reference);
    add(COMPARE_OTHER, (struct run_recipe){.seed = seed, .tokens_per_s = 3000}, other);
}

static void measure(void) {
    cr_assert_eq(comparison_make(&comparison, &sides[0], &sides[1], &error), 0, "%s", error.text);
    equal_loss_make(&equal, &comparison);
}

static void finish(void) {
    comparison_free(&comparison);
    for (int side = 0; side < COMPARE_SIDES; side++) {
        for (int i = 0; i < arrlen(sides[side].runs); i++) run_record_close(&records[side][i]);
        arrfree(sides[side].runs);
    }
}

static void expect_text(const char *part) {
    cr_expect_not_null(strstr(equal.text, part), "\"%s\" is not in: %s", part, equal.text);
}

/* Measures and frees the runs. There must be no figures, for a reason that contains `part`. */
static void expect_no_figures(const char *part) {
    measure();
    cr_expect(isnan(equal.loss) && isnan(equal.tokens.mean) && isnan(equal.speed.mean), "%s",
              equal.text);
    expect_text("- at equal loss: ");
    expect_text(part);
    finish();
}

#define LEARNS ((struct curve){{5, 3, 2.5, 2}})
#define SLOWER ((struct curve){{5, 4, 3.5, 3}})

/* The running minimum stays at 3 from 200 to 300 tokens. The NaN at 400 tokens is left out. */
Test(equal_loss, tokens_to_a_loss) {
    static const struct {
        double loss, tokens;
    } cases[] = {{4, 100},   {3.5, 150}, {3, 200},   {2.75, 350},
                 {2.5, 400}, {2, 500},   {4.1, NAN}, {1.99, NAN}};
    struct run_record run = {0};
    set_curve(&run, (struct curve){{4, 3, 3.5, NAN, 2, 2}});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double found = tokens_to_loss(&run, cases[i].loss), expected = cases[i].tokens;
        cr_expect(isnan(expected) ? isnan(found) : fabs(found - expected) < 1e-9,
                  "%g: %g, expected %g", cases[i].loss, found, expected);
    }
    arrfree(run.validations);
}

/* The target is 3, where the slower learner ends after 400 tokens; the other needs 200. */
Test(equal_loss, a_slower_learner) {
    add_pair(1, LEARNS, SLOWER);
    measure();
    cr_expect_eq(equal.loss, 3, "%g", equal.loss);
    expect_close(equal.tokens.mean, 100, 1e-9, "tokens");
    expect_close(equal.speed.mean, 50, 1e-9, "speed");
    cr_expect_str_eq(equal.text, "200.0 % more tokens/s, 50.0 % faster at equal loss (3.0000), "
                                 "which takes 100.0 % more tokens; one seed: noise unknown");
    finish();
}

Test(equal_loss, a_faster_learner) {
    add_pair(1, SLOWER, LEARNS);
    measure();
    cr_expect_eq(equal.loss, 3, "%g", equal.loss);
    expect_close(equal.tokens.mean, -50, 1e-9, "tokens");
    expect_close(equal.speed.mean, 500, 1e-9, "speed");
    expect_text("500.0 % faster at equal loss (3.0000), which takes 50.0 % fewer tokens");
    finish();
}

Test(equal_loss, slower_at_equal_loss_in_spite_of_more_tokens_per_s) {
    add_pair(1, (struct curve){{5, 1.5, 1.2, 1}}, (struct curve){{5, 4, 3, 2.5, 2, 1.5}});
    measure();
    expect_close(equal.tokens.mean, 200, 1e-9, "600 tokens instead of 200");
    expect_close(equal.speed.mean, 0, 1e-9, "speed");
    finish();
    add(COMPARE_REFERENCE, (struct run_recipe){.seed = 1}, LEARNS);
    add(COMPARE_OTHER, (struct run_recipe){.seed = 1, .tokens_per_s = 1500}, SLOWER);
    measure();
    expect_text("50.0 % more tokens/s, 25.0 % slower at equal loss");
    finish();
}

/* The lowest losses, 2.5 and 2, set the target, not the last ones, which would be 4. */
Test(equal_loss, overfitting_does_not_raise_the_target) {
    add_pair(1, LEARNS, (struct curve){{5, 4, 3, 2.5, 3, 4}});
    measure();
    cr_expect_eq(equal.loss, 2.5, "%g", equal.loss);
    expect_close(equal.tokens.mean, 100 * (400.0 / 300 - 1), 1e-9, "tokens");
    finish();
}

/* +100 %, +50 % and 0 % tokens: Student's t for 2 degrees of freedom is 4.303. */
Test(equal_loss, noise_of_three_seeds) {
    add_pair(1, LEARNS, SLOWER);
    add_pair(2, LEARNS, (struct curve){{5, 4, 3}});
    add_pair(3, LEARNS, (struct curve){{5, 3, 2.5, 2}});
    measure();
    cr_expect_eq(equal.tokens.count, 3);
    expect_close(equal.loss, (3 + 3 + 2) / 3.0, 1e-9, "mean target");
    expect_close(equal.tokens.mean, 50, 1e-9, "mean");
    expect_close(equal.tokens.scatter, 50, 1e-9, "scatter");
    expect_close(equal.tokens.margin, 4.303 * 50 / sqrt(3), 1e-9, "margin");
    expect_close(equal.speed.mean, (50 + 100 + 200) / 3.0, 1e-9, "speed");
    cr_expect(!equal.tokens.real && !equal.speed.real);
    expect_text("which takes 50.0 % (+-124.2) more tokens");
    cr_expect_null(strstr(equal.text, "unknown"), "%s", equal.text);
    finish();
    for (int seed = 1; seed <= 3; seed++) add_pair(seed, LEARNS, SLOWER);
    measure();
    cr_expect(equal.tokens.real && equal.tokens.margin == 0 && equal.tokens.mean == 100);
    expect_text("100.0 % (+-0.0) more tokens");
    finish();
}

Test(equal_loss, too_few_validations) {
    add_pair(1, LEARNS, (struct curve){{5, 3}});
    expect_no_figures("b0 has 2 validations, fewer than 3 (eval.every)");
    add_pair(1, (struct curve){{0}}, LEARNS);
    expect_no_figures("a0 has 0 validations");
    add_pair(1, (struct curve){{5, NAN, 3}}, LEARNS);
    expect_no_figures("a0 has 2 validations");
}

/* The run stays above the reference's first validation. */
Test(equal_loss, a_run_that_never_gets_there) {
    add_pair(1, LEARNS, (struct curve){{9, 8, 7, 6}});
    expect_no_figures("a0 is below 6.0000 at its first validation");
}

Test(equal_loss, diverged_runs) {
    add_pair(1, LEARNS, (struct curve){{5, 3, 2.5, NAN}});
    expect_no_figures("the last validation loss of");
    add_pair(1, LEARNS, (struct curve){{5, 3, 2.5, 9}});
    expect_no_figures("b0 ends no lower than it began");
    /* One diverged seed of three leaves no mean. */
    add_pair(1, LEARNS, SLOWER);
    add_pair(2, LEARNS, (struct curve){{5, 3, 2.5, NAN}});
    add_pair(3, LEARNS, SLOWER);
    expect_no_figures("b1 is not finite");
}

Test(equal_loss, curves_that_are_not_comparable) {
    static const char *const keys[][2] = {
        {", \"data\": {\"val\": \"x\"}", "data.val differs"},
        {", \"eval\": {\"batches\": 3}", "eval.batches differs"},
    };
    for (int i = 0; i < 2; i++) {
        add(COMPARE_REFERENCE, (struct run_recipe){.seed = 1}, LEARNS);
        add(COMPARE_OTHER, (struct run_recipe){.seed = 1, .more = keys[i][0]}, SLOWER);
        expect_no_figures(keys[i][1]);
    }
    add(COMPARE_REFERENCE, (struct run_recipe){.seed = 1}, LEARNS);
    add(COMPARE_OTHER, (struct run_recipe){.seed = 2}, SLOWER);
    expect_no_figures("no seed in common");
    /* The interval changes only the resolution of the curve. */
    add(COMPARE_REFERENCE, (struct run_recipe){.seed = 1}, LEARNS);
    add(COMPARE_OTHER, (struct run_recipe){.seed = 1, .more = ", \"eval\": {\"every\": 3}"},
        SLOWER);
    measure();
    cr_expect_eq(equal.tokens.mean, 100, "%s", equal.text);
    finish();
}

Test(equal_loss, unknown_speed_leaves_the_tokens) {
    add_pair(1, LEARNS, SLOWER);
    for (int i = 0; i < arrlen(records[1][0].steps); i++) records[1][0].steps[i].tokens_per_s = NAN;
    measure();
    cr_expect(isnan(equal.speed.mean) && equal.tokens.mean == 100);
    expect_text("- tokens/s, - at equal loss (3.0000), which takes 100.0 % more tokens");
    finish();
}

/* The fixture's losses are 2 + 3 exp(-step / 30), validated every 10 steps, at 64 tokens a step. */
Test(equal_loss, tokens_come_from_the_metrics) {
    struct run_record run = made((struct run_recipe){.eval_every = 10});
    cr_expect_eq(tokens_to_loss(&run, run.validations[4].loss), 50 * 64);
    double middle = (run.validations[4].loss + run.validations[5].loss) / 2;
    expect_close(tokens_to_loss(&run, middle), 55 * 64, 1e-6, "half way");
    run_record_close(&run);
}
