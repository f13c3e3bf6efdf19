/* weights.keep_quantized: the same bits, from weights that are quantized once a step. */
#include "kernels/observer.h"
#include "test/model/trainer_fixture.h"

enum { STEPS = 3 };

static const struct {
    enum config_precision precision;
    enum config_recipe recipe;
} kinds[] = {
    {CONFIG_PRECISION_FP8, CONFIG_RECIPE_TENSOR},   {CONFIG_PRECISION_FP8, CONFIG_RECIPE_DELAYED},
    {CONFIG_PRECISION_FP8, CONFIG_RECIPE_ROW},      {CONFIG_PRECISION_FP8, CONFIG_RECIPE_BLOCK},
    {CONFIG_PRECISION_MXFP8, CONFIG_RECIPE_TENSOR}, {CONFIG_PRECISION_MXFP4, CONFIG_RECIPE_TENSOR},
    {CONFIG_PRECISION_NVFP4, CONFIG_RECIPE_TENSOR},
};

struct roundings {
    struct observer observer;
    int count;
};

static void count_rounding(struct observer *observer, enum operation_id id, const void *args) {
    (void)args;
    ((struct roundings *)observer)->count += id == ID_quantize || id == ID_fake_quantize;
}

static void set_up(struct config *config, size_t kind, int family) {
    rig_config(config, kinds[kind].precision);
    set_family(config, family);
    config->fp8.recipe = kinds[kind].recipe;
    config->fp8.amax_history_length = 2;
}

/* A validation lies between the steps, whose weights are not those of the next one. */
static struct digest train(const struct config *config, bool keeps, bool *shares, int *count) {
    struct rig rig = {.config = *config};
    struct roundings roundings = {.observer.before = count_rounding};
    double loss;
    rig.config.weights.keep_quantized = keeps;
    rig_open(&rig, 2);
    backend_observe(&rig.be, &roundings.observer);
    rig_step(&rig);
    backend_observe(&rig.be, NULL);
    for (int step = 1; step < STEPS; step++) {
        cr_expect_eq(trainer_evaluate(&rig.trainer, &loss, &rig.loader, 2, &rig.error), 0);
        rig_step(&rig);
    }
    cr_expect_str_eq(rig.be.failure.text, "");
    *count = roundings.count;
    *shares = quantization_serves_both(&rig.trainer.model.quantization, LINEAR_WEIGHT,
                                       linear_index(SITE_QKV));
    struct digest digest = rig_digest(&rig);
    rig_close(&rig);
    return digest;
}

/* Both passes of each micro-batch round all weights, recomputation again, or only the first that
 * reads their memory does. */
static void expect_same_bits(const struct config *config, const char *what) {
    int rounded, kept, micro_steps = (int)config->train.grad_accum_steps;
    int weights = (int)config->model.n_layer * LINEAR_COUNT;
    bool shares;
    struct digest expected = train(config, false, &shares, &rounded);
    expect_same_digest(expected, train(config, true, &shares, &kept), what);
    int saved = weights * (2 * micro_steps - (shares ? 1 : 2));
    if (config->train.recompute == RECOMPUTE_LAYER) cr_expect_gt(rounded - kept, saved);
    else cr_expect_eq(rounded - kept, saved);
}

Test(keep_quantized, changes_no_bit) {
    for (size_t kind = 0; kind < COUNT(kinds); kind++)
        for (int family = 0; family < 2; family++) {
            struct config config;
            if (test_leaves_out(kind + (size_t)family)) continue;
            set_up(&config, kind, family);
            expect_same_bits(&config, config_precision_name(config.precision));
            config.train.recompute = RECOMPUTE_LAYER;
            expect_same_bits(&config, "recomputed");
        }
}

/* The forward pass in bf16 quantizes no weight, so the backward pass does. */
Test(keep_quantized, of_the_backward_pass_alone) {
    struct config config;
    set_up(&config, 0, 1);
    config.autocast.lower16_forward = true;
    config.train.grad_accum_steps = 3;
    struct digest digests[2];
    int counts[2];
    bool shares;
    for (int keeps = 0; keeps < 2; keeps++)
        digests[keeps] = train(&config, keeps, &shares, &counts[keeps]);
    expect_same_digest(digests[0], digests[1], "backward");
    cr_expect_eq(counts[0] - counts[1], 2 * (int)config.model.n_layer * LINEAR_COUNT);
}

Test(keep_quantized, a_model_that_only_predicts_keeps_nothing) {
    struct config config;
    struct model model;
    struct rig rig = {0};
    set_up(&rig.config, 0, 0);
    config = rig.config;
    config.weights.keep_quantized = true;
    rig_open(&rig, 1);
    cr_assert_eq(
        model_open(&model, &config, &rig.precision, &rig.be, PURPOSE_EVALUATION, &rig.error), 0);
    cr_expect_not(model.quantization.keeps_weights);
    model_close(&model);
    rig_close(&rig);
}
