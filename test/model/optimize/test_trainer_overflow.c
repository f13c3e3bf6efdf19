/* Overflow in a training step: what a skipped step keeps, and when a run that cannot recover ends.
 */
#include "model/config/config_keys.h"
#include "test/model/trainer_fixture.h"

/* A scale at which every fp16 gradient overflows. */
static void open_overflowing(struct rig *rig, double min_scale) {
    rig_config(&rig->config, CONFIG_PRECISION_FP16);
    rig->config.loss_scale.init_scale = 0x1p32;
    rig->config.loss_scale.min_scale = min_scale;
    rig->config.loss_scale.backoff_factor = 0.25;
    rig_open(rig, 1);
}

Test(trainer, skipped_step_changes_no_weight_and_uses_its_batch) {
    struct rig rig = {0}, calm = {0};
    open_overflowing(&rig, 1e-6);
    rig_config(&calm.config, CONFIG_PRECISION_FP16);
    rig_open(&calm, 1);
    struct digest before = rig_digest(&rig);
    struct step_report report = rig_step(&rig);
    cr_assert(report.skipped);
    expect_same_digest(before, rig_digest(&rig), "a skipped step");
    cr_expect_eq(report.loss_scale, 0x1p32f);
    cr_expect_eq(report.step, 1);
    cr_expect_eq(report.tokens, 2 * 2 * RIG_LENGTH);
    const struct step_state *s = &rig.trainer.state.scaler;
    cr_expect_eq(s->loss_scale, 0x1p30f);
    cr_expect_eq(s->skipped, 1);
    cr_expect_eq(s->updates, 0);
    /* The next batch is the second one, as its loss at the initial weights shows. */
    float second = rig_step(&rig).loss;
    cr_expect_eq(report.loss, rig_step(&calm).loss);
    cr_expect_neq(second, report.loss, "the same batch again");
    cr_expect_eq(rig.trainer.state.step, 2);
    rig_close(&rig);
    rig_close(&calm);
}

/* After backing off, training continues as if it had begun with Adam's first step. */
Test(trainer, skipped_steps_do_not_count_for_adam) {
    struct rig rig = {0};
    open_overflowing(&rig, 1e-6);
    struct step_report report = {.skipped = true};
    for (int step = 0; step < 20 && report.skipped; step++) report = rig_step(&rig);
    cr_assert_not(report.skipped, "never recovers");
    const struct step_state *s = &rig.trainer.state.scaler;
    cr_expect_gt(s->skipped, 2);
    cr_expect_eq(s->updates, 1);
    cr_expect_eq(s->skipped + s->updates, (int)rig.trainer.state.step);
    cr_expect_eq(s->skipped_in_row, 0);
    rig_close(&rig);
}

static int steps_until_failure(struct rig *rig, int most) {
    struct step_report report;
    for (int step = 1; step <= most; step++)
        if (trainer_begin_step(&rig->trainer, &rig->loader, &rig->error) ||
            trainer_end_step(&rig->trainer, &report, &rig->error))
            return step;
    return 0;
}

Test(trainer, overflow_at_the_floor_stops) {
    struct rig rig = {0};
    open_overflowing(&rig, 0x1p32);
    struct digest before = rig_digest(&rig);
    int failed = steps_until_failure(&rig, 50);
    cr_expect_eq(failed, 8, "step %d", failed);
    static const char *const parts[] = {"step 8", "loss_scale.min_scale", "bf16", "optimizer.lr"};
    for (size_t i = 0; i < COUNT(parts); i++)
        cr_expect_not_null(strstr(rig.error.text, parts[i]), "%s", rig.error.text);
    expect_same_digest(before, rig_digest(&rig), "skipped steps");
    cr_expect_eq(rig.trainer.state.scaler.loss_scale, 0x1p32f);
    rig_close(&rig);
}

/* Training that starts from a high scale stops only at the minimum. */
Test(trainer, backing_off_to_the_floor_does_not_stop) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP16);
    rig.config.loss_scale.init_scale = 0x1p32;
    rig.config.loss_scale.min_scale = 16;
    rig.config.loss_scale.backoff_factor = 0.5;
    rig_open(&rig, 1);
    cr_expect_eq(steps_until_failure(&rig, 40), 0, "%s", rig.error.text);
    cr_expect_gt(rig.trainer.state.scaler.skipped, 8);
    cr_expect_gt(rig.trainer.state.scaler.updates, 5);
    rig_close(&rig);
}

static void poison(struct rig *rig, float value) {
    struct model *model = &rig->trainer.model;
    masters_upload(&model->masters, &rig->be, &value, 40, 1);
    masters_refresh(&model->masters, &rig->be);
}

static void check_divergence(enum config_precision precision, float value) {
    struct rig rig = {0};
    rig_config(&rig.config, precision);
    rig_open(&rig, 1);
    rig_steps(&rig, 3);
    poison(&rig, value);
    struct digest before = rig_digest(&rig);
    int failed = steps_until_failure(&rig, 50);
    cr_expect_eq(failed, 10, "%s: step %d", config_precision_name(precision), failed);
    cr_expect_not_null(strstr(rig.error.text, "step 13"), "%s", rig.error.text);
    cr_expect_not_null(strstr(rig.error.text, "diverged"), "%s", rig.error.text);
    cr_expect_not_null(strstr(rig.error.text, "optimizer.lr"), "%s", rig.error.text);
    expect_same_digest(before, rig_digest(&rig), "skipped steps");
    cr_expect_eq(rig.trainer.state.scaler.updates, 3);
    cr_expect_eq(rig.trainer.state.scaler.loss_scale, 1);
    rig_close(&rig);
}

Test(trainer, nan_weights_stop_after_ten_steps) {
    check_divergence(CONFIG_PRECISION_FP32, NAN);
    check_divergence(CONFIG_PRECISION_BF16, NAN);
    check_divergence(CONFIG_PRECISION_BF16, INFINITY);
}

/* Imitates a forward pass that lost its values while the gradients survived. */
Test(trainer, losses_that_are_not_finite_stop_after_ten_steps) {
    struct rig rig = {0};
    struct step_report report;
    int failed = 0, step = 0;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig_open(&rig, 1);
    while (!failed && ++step <= 20) {
        cr_assert_eq(trainer_begin_step(&rig.trainer, &rig.loader, &rig.error), 0);
        int slot = rig.trainer.first_queued;
        backend_fetched(&rig.be, slot); /* a GPU would overwrite a value planted earlier */
        if (step != 3) rig.trainer.results[slot].loss = -NAN; /* step 3 is good */
        failed = trainer_end_step(&rig.trainer, &report, &rig.error);
        cr_expect_not(report.skipped);
    }
    cr_expect_eq(step, 13, "step %d", step);
    cr_expect_not_null(strstr(rig.error.text, "the loss was not finite 10 times"), "%s",
                       rig.error.text);
    cr_expect_not_null(strstr(rig.error.text, "(loss nan)"), "%s", rig.error.text);
    rig_close(&rig);
}

Test(trainer, nan_weights_stop_fp16_at_the_floor) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP16);
    rig.config.loss_scale.min_scale = 1;
    rig_open(&rig, 1);
    poison(&rig, NAN);
    int failed = steps_until_failure(&rig, 50);
    cr_expect_eq(failed, 18, "1024 is halved ten times, then 1 fails eight times: step %d", failed);
    rig_close(&rig);
}
