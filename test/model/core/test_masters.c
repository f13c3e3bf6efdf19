/* The forms of master weights, moments in 16 bits, and state on the host: the same computation
 * gives the same bits in any memory layout. */
#include "model/config/config_keys.h"
#include "test/model/trainer_fixture.h"

enum { STEPS = 4 };

/* Hashes master weights and moments only, because only some forms have copies. */
static struct digest state_digest(struct rig *rig) {
    struct digest digest;
    struct sha256 hash;
    const struct model *model = &rig->trainer.model;
    sha256_begin(&hash);
    rig_hash_masters(&hash, model);
    rig_hash_moments(&hash, &rig->trainer.optimizer);
    sha256_end(digest.hex, &hash);
    return digest;
}

/* Trains with a validation in between. To test offloading, the CPU backend is told that its
 * memory is not the host's. */
static struct digest train(const struct config *config, int threads, double *loss) {
    struct rig rig = {.config = *config};
    rig_open_data(&rig);
    rig_open_backend(&rig, test_device(), threads);
    if (config->offload.optimizer) rig.be.device.host_memory = false;
    cr_assert_eq(trainer_open(&rig.trainer, &rig.config, &rig.precision, &rig.be,
                              TRAINER_INITIALIZED, &rig.error),
                 0, "%s", rig.error.text);
    rig_steps(&rig, STEPS / 2);
    cr_expect_eq(trainer_evaluate(&rig.trainer, loss, &rig.loader, 4, &rig.error), 0);
    state_digest(&rig); /* reads the state as a checkpoint would */
    rig_steps(&rig, STEPS / 2);
    cr_expect_str_eq(rig.be.failure.text, "");
    struct digest digest = state_digest(&rig);
    rig_close(&rig);
    return digest;
}

static void set_up(struct config *config, enum config_precision precision, int variant) {
    rig_config(config, precision);
    config->model.n_layer = 3;
    config->loss_scale.init_scale = 0x1p30; /* overflows at first */
    if (variant & 1) config->gradients.dtype = CONFIG_DTYPE_LOWER;
    if (variant & 1) config->autocast.float32 = (struct config_words){1, {"mlp_fc"}};
    if (variant & 2) config->train.recompute = RECOMPUTE_LAYER;
}

/* Each family in all precisions and variants, but not in all pairs of them. */
Test(masters, train_to_the_same_bits_in_every_form) {
    for (size_t p = 1; p < COUNT(rig_precisions); p++)
        for (int variant = 0; variant < 4 * FAMILIES; variant++) {
            struct config config;
            double loss, kept_loss;
            if ((variant + variant / 4 + (int)p) % 4) continue;
            if (test_emulated() && (variant + (int)p) % FAMILIES != variant / 4) continue;
            set_up(&config, rig_precisions[p], variant % 4);
            set_family(&config, variant / 4);
            config.weights.copy = CONFIG_COPY_KEPT;
            struct digest kept = train(&config, 2, &kept_loss);
            config.weights.copy = CONFIG_COPY_CAST;
            expect_same_digest(kept, train(&config, 2, &loss), "cast");
            cr_expect_eq(loss, kept_loss);
            config.weights.copy = CONFIG_COPY_AUTO;
            expect_same_digest(kept, train(&config, 2, &loss), "auto");
            cr_expect_eq(loss, kept_loss);
        }
}

Test(masters, offloaded_state_trains_to_the_same_bits) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (int variant = 0; variant < 4; variant++) {
            struct config config;
            double loss;
            set_up(&config, rig_precisions[p], variant);
            if (variant & 2) config.optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
            struct digest here = train(&config, 1, &loss);
            config.offload.optimizer = true;
            expect_same_digest(here, train(&config, 1, &loss), "offloaded");
        }
}

Test(masters, moments_in_bf16_are_reproducible) {
    struct config config;
    double loss, exact;
    set_up(&config, CONFIG_PRECISION_BF16, 0);
    struct digest wide = train(&config, 1, &exact);
    config.optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
    struct digest first = train(&config, 1, &loss);
    expect_same_digest(first, train(&config, 1, &loss), "again");
    cr_expect_str_neq(first.hex, wide.hex);
    config.seed++;
    struct digest other = train(&config, 1, &loss);
    cr_expect_str_neq(first.hex, other.hex, "another seed draws the same");
}

Test(masters, offload_needs_another_memory) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig.config.offload.optimizer = true;
    rig_open_data(&rig);
    rig_open_backend(&rig, DEVICE_CPU, 1);
    cr_expect_eq(trainer_open(&rig.trainer, &rig.config, &rig.precision, &rig.be,
                              TRAINER_INITIALIZED, &rig.error),
                 -1);
    cr_expect(strstr(rig.error.text, "offload.optimizer"), "%s", rig.error.text);
    rig_close(&rig);
}

/* The device plan lacks exactly what the plan lists as offloaded. */
Test(masters, offload_plans_memory_of_the_host) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig_open_data(&rig);
    rig_open_backend(&rig, test_device(), 1);
    rig.be.device.host_memory = false;
    struct memory_plan plans[2];
    for (int offload = 0; offload < 2; offload++) {
        rig.config.offload.optimizer = offload;
        cr_assert_eq(trainer_open(&rig.trainer, &rig.config, &rig.precision, &rig.be,
                                  TRAINER_INITIALIZED, &rig.error),
                     0, "%s", rig.error.text);
        plans[offload] = rig.trainer.model.memory;
        trainer_close(&rig.trainer);
    }
    cr_expect_eq(plans[0].host, 0);
    cr_expect_eq(plans[1].moments, 0);
    cr_expect_eq(memory_total(&plans[0]), memory_total(&plans[1]) + plans[1].host);
    rig_close(&rig);
}
