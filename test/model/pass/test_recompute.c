/* train.recompute: less memory, the same bits. */
#include "model/config/config_keys.h"
#include "test/model/trainer_fixture.h"

#include "model/pass/forward.h"
#include "model/task/sample.h"

enum { STEPS = 3 };

static const enum recompute levels[] = {RECOMPUTE_NONE, RECOMPUTE_GELU, RECOMPUTE_LAYER};

/* Odd sizes take the kernels' general paths. */
static void set_up(struct config *config, enum config_precision precision, bool odd) {
    rig_config(config, precision);
    config->model.n_layer = 3;
    if (!odd) return;
    config->model.n_head = 3;
    config->model.n_embd = 33;
    config->data.seq_len = RIG_LENGTH - 1;
}

static struct digest train(const struct config *config, int threads, size_t *activations) {
    struct rig rig = {.config = *config};
    double loss;
    rig_open(&rig, threads);
    rig_steps(&rig, STEPS);
    cr_expect_eq(trainer_evaluate(&rig.trainer, &loss, &rig.loader, 4, &rig.error), 0);
    rig_step(&rig);
    cr_expect_str_eq(rig.be.failure.text, "");
    *activations = rig.trainer.model.memory.activations;
    struct digest digest = rig_digest(&rig);
    rig_close(&rig);
    return digest;
}

static void expect_same_bits(const struct config *config, const char *what) {
    struct digest digests[3];
    size_t activations[3];
    for (int level = 0; level < 3; level++) {
        struct config other = *config;
        other.train.recompute = levels[level];
        digests[level] = train(&other, 2, &activations[level]);
    }
    expect_same_digest(digests[0], digests[1], what);
    expect_same_digest(digests[0], digests[2], what);
    cr_expect_gt(activations[0], activations[1], "%s: gelu saves nothing", what);
    cr_expect_gt(activations[1], activations[2], "%s: layer saves nothing", what);
}

Test(recompute, gives_the_same_bits_in_every_precision) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (int odd = 0; odd < 2; odd++) {
            struct config config;
            if (test_leaves_out(p + (size_t)odd)) continue;
            set_up(&config, rig_precisions[p], odd);
            expect_same_bits(&config, config_precision_name(rig_precisions[p]));
        }
}

Test(recompute, gives_the_same_bits_in_every_family) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (int family = 1; family < FAMILIES; family++) {
            struct config config;
            if (test_leaves_out(p + (size_t)family)) continue;
            set_up(&config, rig_precisions[p], false);
            const char *name = set_family(&config, family);
            expect_same_bits(&config, name);
        }
}

Test(recompute, gives_the_same_bits_in_mixed_dtypes) {
    static const char *const words[] = {"qkv", "gelu", "mlp_fc", "mlp_projection"};
    for (size_t w = 0; w < COUNT(words); w++) {
        struct config config;
        set_up(&config, w % 2 ? CONFIG_PRECISION_FP16 : CONFIG_PRECISION_BF16, false);
        config.autocast.float32 = (struct config_words){1, {words[w]}};
        config.autocast.residual = w < 2 ? CONFIG_DTYPE_LOWER : CONFIG_DTYPE_FLOAT32;
        config.gradients.dtype = w % 2 ? CONFIG_DTYPE_LOWER : CONFIG_DTYPE_FLOAT32;
        expect_same_bits(&config, words[w]);
    }
}

/* The layers' keys and values, which sampling needs, are not shared. */
Test(recompute, a_model_that_samples_in_training_predicts_the_same) {
    static const int32_t prompt[] = {3, 10, 31};
    float *logits[3]; /* after the last token */
    for (int level = 0; level < 3; level++) {
        struct rig rig = {0};
        struct sample_result result;
        struct sample_options options = {.prompt = prompt,
                                         .prompt_length = COUNT(prompt),
                                         .tokens = 20,
                                         .temperature = 1,
                                         .top_p = 1};
        rig_config(&rig.config, CONFIG_PRECISION_BF16);
        rig.config.train.recompute = levels[level];
        rig.config.sample.every = 1;
        rig_open(&rig, 1);
        rig_steps(&rig, 2);
        cr_assert_eq(sample_tokens(&rig.trainer.model, &result, &options, &rig.error), 0, "%s",
                     rig.error.text);
        cr_expect_eq(result.tokens, options.tokens);
        struct tensor row = tensor_range(&rig.trainer.model.activations.logits, 0, RIG_VOCABULARY);
        logits[level] = rig_floats(&rig.be, &row);
        cr_expect_arr_eq(logits[0], logits[level], RIG_VOCABULARY * sizeof(float), "level %d",
                         level);
        rig_close(&rig);
    }
    for (int level = 0; level < 3; level++) free(logits[level]);
}
