/* Steps in which some targets do not count. */
#include "test/model/trainer_fixture.h"

/* The first step with a mask of the text: its gradients, for a given split of four sequences. */
static float *gradients_of(int64_t batch, int64_t micro_steps, const uint8_t *mask,
                           struct step_report *report, int64_t *count) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.train.micro_batch_size = batch;
    rig.config.train.grad_accum_steps = micro_steps;
    rig_open(&rig, 1);
    rig.tokens.shards[0].mask.bits = mask;
    *report = rig_step(&rig);
    float *gradients = rig_floats(&rig.be, &rig.trainer.model.gradients);
    *count = rig.trainer.model.count;
    rig_close(&rig);
    return gradients;
}

/* The mean is over the targets of all micro-batches, however many each has. Sums in another
 * order: a few units of 2^-24 of the largest gradient. */
Test(trainer_mask, micro_batches_of_unequal_counts_add_up_to_the_batch) {
    static const int splits[][2] = {{2, 2}, {1, 4}};
    uint8_t mask[RIG_MASK_BYTES];
    struct step_report whole_report, report;
    int64_t count;
    rig_mask(mask);
    float *whole = gradients_of(4, 1, mask, &whole_report, &count), largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(whole[i]));
    cr_expect_gt(largest, 1e-3f);
    for (size_t s = 0; s < COUNT(splits); s++) {
        float worst = 0;
        float *parts = gradients_of(splits[s][0], splits[s][1], mask, &report, &count);
        for (int64_t i = 0; i < count; i++) worst = fmaxf(worst, fabsf(whole[i] - parts[i]));
        cr_expect_lt(worst, 16 * 0x1p-24f * largest, "%d x %d: %g of %g", splits[s][0],
                     splits[s][1], worst, largest);
        cr_expect_lt(fabsf(report.loss - whole_report.loss), 1e-6f);
        free(parts);
    }
    free(whole);
}

/* The loss of a step is the mean of the losses of its targets alone. */
Test(trainer_mask, the_loss_is_the_mean_over_what_counts) {
    uint8_t mask[RIG_MASK_BYTES], one[RIG_MASK_BYTES];
    struct step_report masked, single;
    struct rig data = {0};
    int64_t count, counted = 0;
    double sum = 0;
    rig_mask(mask);
    rig_config(&data.config, CONFIG_PRECISION_FP32);
    rig_open_data(&data);
    data.tokens.shards[0].mask.bits = mask;
    const uint64_t expected = loader_target_count(&data.loader, 0, 4);
    cr_assert(expected >= 5 && expected < 20, "%d", (int)expected);
    data.tokens.shards[0].mask.bits = one;
    for (int i = 0; i < RIG_TOKENS; i++) {
        memset(one, 0, sizeof one);
        one[i / 8] = mask[i / 8] & (uint8_t)(1 << i % 8);
        if (loader_target_count(&data.loader, 0, 4) == 0) continue;
        free(gradients_of(2, 2, one, &single, &count));
        cr_expect_gt(single.loss, 0);
        sum += single.loss;
        counted++;
    }
    free(gradients_of(2, 2, mask, &masked, &count));
    cr_expect_eq(counted, expected);
    double mean = sum / (double)counted;
    cr_expect_float_eq(masked.loss, mean, 1e-6 * mean, "%g, %g", masked.loss, mean);
    loader_close(&data.loader);
    tokens_close(&data.tokens);
}

/* A step on 12 tokens, cut into sequences of `length` targets: its gradients. */
static float *gradients_of_tail(int family, int64_t length, struct step_report *report,
                                int64_t *count) {
    struct rig rig = {0};
    struct tokens shards = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    set_family(&rig.config, family);
    rig.config.data.seq_len = length;
    rig.config.train.micro_batch_size = rig.config.train.grad_accum_steps = 1;
    rig_open(&rig, 1);
    rig_add_shard(&shards, &rig, 0, RIG_LENGTH + 1);
    rig_add_shard(&shards, &rig, 1000, 12);
    rig_use_shards(&rig, &shards);
    rig.trainer.state.next_sample = (int64_t)rig.loader.sequence_count - 1;
    *report = rig_step(&rig);
    float *gradients = rig_floats(&rig.be, &rig.trainer.model.gradients);
    *count = rig.trainer.model.count;
    rig_close(&rig);
    return gradients;
}

/* The tokens that fill a sequence up add nothing. The sums of fp32 have other lengths. */
Test(trainer_mask, a_sequence_filled_up_gives_the_gradients_of_the_shorter_one) {
    for (int family = 0; family < FAMILIES; family++) {
        struct step_report filled_report, short_report;
        int64_t count;
        float worst = 0, largest = 0;
        float *filled = gradients_of_tail(family, RIG_LENGTH, &filled_report, &count);
        float *shorter = gradients_of_tail(family, 11, &short_report, &count);
        for (int64_t i = 0; i < count; i++) {
            worst = fmaxf(worst, fabsf(filled[i] - shorter[i]));
            largest = fmaxf(largest, fabsf(shorter[i]));
        }
        cr_expect_gt(largest, 1e-3f);
        cr_expect_lt(worst, 1e-6f * fmaxf(1, largest), "%g of %g", worst, largest);
        cr_expect_float_eq(filled_report.loss, short_report.loss, 1e-6 * short_report.loss);
        free(filled);
        free(shorter);
    }
}

/* No target counts: no loss, no gradient, and a finite update. */
Test(trainer_mask, a_step_without_targets_is_an_update_by_zero) {
    static const uint8_t none[RIG_MASK_BYTES];
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        struct rig rig = {0};
        rig_config(&rig.config, rig_precisions[p]);
        rig_open(&rig, 1);
        rig_steps(&rig, 2);
        rig.tokens.shards[0].mask.bits = none;
        struct step_report report = rig_step(&rig);
        cr_expect_eq(report.loss, 0);
        cr_expect_eq(report.gradient_norm, 0);
        cr_expect_not(report.skipped);
        cr_expect_eq(rig.trainer.state.scaler.updates, 3);
        rig.tokens.shards[0].mask.bits = NULL;
        report = rig_step(&rig);
        cr_expect(report.loss > 0 && report.loss < 10 && !report.skipped, "%g", report.loss);
        rig_close(&rig);
    }
}
