/* ./train --profile: the times of a step by operation, and profile.json. */
#include "test/model/trainer_fixture.h"

#include "model/lab/evaluation/run_profile.h"

Test(profile, parts_are_those_of_a_step) {
    struct rig rig = {0};
    struct profile profile;
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig_open(&rig, 1);
    cr_assert_eq(profile_trainer(&profile, &rig.trainer, &rig.loader, 3, &rig.error), 0, "%s",
                 rig.error.text);
    cr_expect_eq(profile.repetitions, 3);
    cr_expect_eq(profile.tokens, 2 * 2 * RIG_LENGTH);
    cr_expect_eq(rig.trainer.state.step, 7, "one step to warm up, and two a repetition");
    static const enum operation_id called[] = {ID_embedding_forward,
                                               ID_embedding_backward,
                                               ID_layernorm_forward,
                                               ID_layernorm_backward,
                                               ID_matmul,
                                               ID_attention_forward,
                                               ID_attention_backward,
                                               ID_cross_entropy,
                                               ID_clear,
                                               ID_loss_sum,
                                               ID_gradient_squares,
                                               ID_gradient_norm,
                                               ID_update};
    for (size_t i = 0; i < COUNT(called); i++)
        cr_expect_gt(profile.operations[called[i]], 0, "%s", operation_name(called[i]));
    cr_expect_eq(profile.operations[ID_attention_decode], 0);
    cr_expect_gt(profile.matmuls, 0);
    cr_expect_gt(profile.step, 0);
    rig_close(&rig);
}

/* Observed steps and replayed matmuls do not change the weights: they equal those after as many
 * plain steps. */
Test(profile, observing_changes_no_bits) {
    struct rig watched = {0}, plain = {0};
    struct profile profile;
    rig_config(&watched.config, CONFIG_PRECISION_FP16);
    plain.config = watched.config;
    rig_open(&watched, 1);
    rig_open(&plain, 1);
    cr_assert_eq(profile_trainer(&profile, &watched.trainer, &watched.loader, 2, &watched.error),
                 0);
    rig_steps(&plain, 5);
    expect_same_digest(rig_digest(&watched), rig_digest(&plain), "five steps");
    rig_close(&watched);
    rig_close(&plain);
}
