/* Learning rate of each step: end points, warmup, the shortest runs, and a decay that never
 * rises. */
#include <criterion/criterion.h>
#include <math.h>

#include "model/config/config_keys.h"
#include "model/optimize/schedule.h"

static const enum config_schedule schedules[] = {CONFIG_SCHEDULE_COSINE, CONFIG_SCHEDULE_LINEAR,
                                                 CONFIG_SCHEDULE_CONSTANT, CONFIG_SCHEDULE_WSD};

static struct config make(enum config_schedule schedule, int64_t steps, int64_t warmup) {
    struct config config;
    config_defaults(&config);
    config.optimizer.lr = 3e-3;
    config.optimizer.min_lr = 1e-4;
    config.optimizer.schedule = schedule;
    config.optimizer.warmup_steps = warmup;
    config.optimizer.decay_fraction = 0.2;
    config.train.steps = steps;
    return config;
}

static void expect_rate(const struct config *config, int64_t step, double expected) {
    double got = schedule_lr(config, step);
    cr_expect(fabs(got - expected) <= 1e-15, "%s, step %lld of %lld: %.17g, not %.17g",
              config_name_of("optimizer.schedule", config->optimizer.schedule), (long long)step,
              (long long)config->train.steps, got, expected);
}

Test(schedule, warmup_rises_in_equal_steps_and_ends_at_lr) {
    for (int i = 0; i < 4; i++) {
        struct config config = make(schedules[i], 100, 10);
        for (int step = 0; step < 10; step++) expect_rate(&config, step, 3e-3 * (step + 1) / 10);
    }
}

Test(schedule, first_and_last_step) {
    for (int i = 0; i < 4; i++)
        for (int warmup = 0; warmup <= 10; warmup += 5) {
            struct config config = make(schedules[i], 101, warmup);
            bool constant = schedules[i] == CONFIG_SCHEDULE_CONSTANT;
            expect_rate(&config, warmup > 0 ? warmup - 1 : 0, 3e-3);
            expect_rate(&config, 100, constant ? 3e-3 : 1e-4);
        }
}

/* The decay is measured from the step with the full lr, here 19, to the last one. */
Test(schedule, halfway_through_the_decay) {
    const double lr = 3e-3, min_lr = 1e-4, pi = acos(-1);
    struct config linear = make(CONFIG_SCHEDULE_LINEAR, 120, 20);
    struct config cosine = make(CONFIG_SCHEDULE_COSINE, 120, 20);
    expect_rate(&linear, 69, (lr + min_lr) / 2);
    expect_rate(&linear, 44, lr + (min_lr - lr) / 4);
    expect_rate(&cosine, 69, (lr + min_lr) / 2);
    expect_rate(&cosine, 44, min_lr + (lr - min_lr) * (1 + cos(pi / 4)) / 2);
}

Test(schedule, wsd_is_stable_and_then_falls_in_a_line) {
    struct config config = make(CONFIG_SCHEDULE_WSD, 1000, 50);
    for (int step = 50; step < 800; step++) expect_rate(&config, step, 3e-3);
    cr_expect_lt(schedule_lr(&config, 800), 3e-3);
    expect_rate(&config, 899, (3e-3 + 1e-4) / 2);
    expect_rate(&config, 999, 1e-4);
}

/* The decay takes exactly decay_fraction of the steps. */
Test(schedule, wsd_decays_over_its_fraction) {
    for (int steps = 1; steps <= 200; steps += 7)
        for (int percent = 0; percent <= 100; percent++) {
            struct config config = make(CONFIG_SCHEDULE_WSD, steps, 0);
            config.optimizer.decay_fraction = percent / 100.0;
            int below = 0;
            for (int step = 0; step < steps; step++)
                below += schedule_lr(&config, step) < config.optimizer.lr;
            int wanted = percent * steps / 100; /* the first step has the full rate */
            cr_expect_eq(below, wanted < steps ? wanted : steps - 1,
                         "%d of %d steps, asked for %d %%", below, steps, percent);
        }
}

/* No decay fits in one step, so the step has the full rate. */
Test(schedule, one_step) {
    for (int i = 0; i < 4; i++)
        for (int warmup = 0; warmup <= 1; warmup++) {
            struct config config = make(schedules[i], 1, warmup);
            expect_rate(&config, 0, 3e-3);
        }
}

Test(schedule, warmup_that_takes_all_steps) {
    for (int i = 0; i < 4; i++) {
        struct config config = make(schedules[i], 8, 8);
        config.optimizer.decay_fraction = 0;
        for (int step = 0; step < 8; step++) expect_rate(&config, step, 3e-3 * (step + 1) / 8);
    }
}

static void check_shape(const struct config *config) {
    double previous = 0, lr = config->optimizer.lr;
    int64_t warmup = config->optimizer.warmup_steps, peak = warmup > 0 ? warmup - 1 : 0;
    for (int64_t step = 0; step < config->train.steps; step++) {
        double rate = schedule_lr(config, step);
        cr_assert(rate > 0 && rate <= lr * (1 + 1e-15), "step %lld: %g", (long long)step, rate);
        if (step > 0)
            cr_assert(step <= peak ? rate > previous : rate <= previous + 1e-18,
                      "%s, step %lld of %lld: %g, %g",
                      config_name_of("optimizer.schedule", config->optimizer.schedule),
                      (long long)step, (long long)config->train.steps, previous, rate);
        if (step == peak) cr_assert(fabs(rate - lr) <= 1e-15, "the peak is %g", rate);
        previous = rate;
    }
    bool decays = config->optimizer.schedule != CONFIG_SCHEDULE_CONSTANT &&
                  (config->optimizer.schedule != CONFIG_SCHEDULE_WSD ||
                   config->optimizer.decay_fraction * (double)config->train.steps >= 1);
    double last = decays && config->train.steps - 1 > peak ? config->optimizer.min_lr : lr;
    cr_assert(fabs(previous - last) <= 1e-15, "the last step has %g, not %g", previous, last);
}

Test(schedule, rises_once_and_never_again) {
    for (int i = 0; i < 4; i++)
        for (int steps = 1; steps <= 40; steps++)
            for (int warmup = 0; warmup <= steps; warmup++)
                for (int fifths = 0; fifths <= 5; fifths++) {
                    struct config config = make(schedules[i], steps, warmup);
                    config.optimizer.decay_fraction = fifths / 5.0;
                    check_shape(&config);
                }
}

Test(schedule, flat_when_both_rates_agree) {
    for (int i = 0; i < 4; i++) {
        struct config config = make(schedules[i], 50, 0);
        config.optimizer.min_lr = config.optimizer.lr;
        for (int step = 0; step < 50; step++)
            cr_expect_eq(schedule_lr(&config, step), config.optimizer.lr);
    }
}

Test(schedule, runs_of_a_billion_steps) {
    for (int i = 0; i < 4; i++) {
        struct config config = make(schedules[i], 1000000000, 1000);
        expect_rate(&config, 999, 3e-3);
        expect_rate(&config, 999999999, i == 2 ? 3e-3 : 1e-4);
    }
}
