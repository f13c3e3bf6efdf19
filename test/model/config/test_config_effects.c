/* Settings that another key leaves without effect, and settings that differ. */
#include "test/model/config/config_fixture.h"

#include "model/config/config_effects.h"

/* Returns the lines about keys without effect, until the next call. */
static const char *unused(const struct config *config) {
    static struct notes notes;
    static const char prefix[] = "warning: ";
    config_unused(config, notes_open(&notes));
    notes_close(&notes);
    for (char *at = notes.text; (at = strstr(at, prefix));)
        memmove(at, at + strlen(prefix), strlen(at + strlen(prefix)) + 1);
    return notes.text;
}

static void expect_warnings(const char *json, const char *flag, const char *expected) {
    struct fixture fixture;
    struct config config;
    fixture_open(&fixture);
    load_well(&fixture, &config, json, flag);
    cr_expect_str_eq(unused(&config), expected, "%s %s: %s", json, flag ? flag : "",
                     unused(&config));
    fixture_close(&fixture);
}

static void expect(const char *json, const char *flag, const char *expected) {
    struct fixture fixture;
    struct config config;
    expect_warnings(json, flag, expected);
    fixture_open(&fixture);
    load_well(&fixture, &config, json, flag);
    /* The config that a checkpoint keeps, which has all keys, repeats only the file's values. */
    char *saved = dump(&config);
    load_well(&fixture, &config, saved, NULL);
    cr_expect(strlen(unused(&config)) <= strlen(expected), "saved: %s", unused(&config));
    free(saved);
    fixture_close(&fixture);
}

Test(config_effects, keys_of_parts_that_are_off) {
    expect("{}", NULL, "");
    expect("{}", "adapter.rank=16", "adapter.rank has no effect: adapter.type is none\n");
    expect("{\"adapter\": {\"rank\": 16}}", NULL, "");
    expect("{\"adapter\": {\"rank\": 8, \"type\": \"lora\"}}", NULL, "");
    expect("{\"objective\": {\"beta\": 0.5}, \"distill\": {\"alpha\": 0.2}}", NULL,
           "objective.beta has no effect: train.objective is language\n"
           "distill.alpha has no effect: distill.logits is empty\n");
    expect("{\"optimizer\": {\"momentum\": 0.5, \"decay_fraction\": 0.5}}", NULL,
           "optimizer.decay_fraction has no effect: optimizer.schedule is not wsd\n"
           "optimizer.momentum has no effect: optimizer.name is adamw\n");
    expect("{\"optimizer\": {\"momentum\": 0.5, \"name\": \"sgd\"}}", NULL, "");
    expect("{\"optimizer\": {\"rounding_8bit\": \"stochastic\"}}", NULL,
           "optimizer.rounding_8bit has no effect: optimizer.moments is not int8\n");
}

Test(config_effects, keys_of_other_precisions) {
    expect("{\"precision\": \"bf16\", \"fp8\": {\"recipe\": \"row\"}}", NULL,
           "fp8.recipe has no effect: precision is not fp8\n");
    expect("{\"precision\": \"fp8\", \"fp8\": {\"recipe\": \"row\"}}", NULL, "");
    expect("{\"precision\": \"fp8\", \"fp8\": {\"recipe\": \"row\"}}", "precision=bf16",
           "fp8.recipe has no effect: precision is not fp8\n");
    expect("{\"precision\": \"fp8\", \"fp8\": {\"recipe\": \"row\"}, "
           "\"precision_switch\": {\"at\": 0.5}}",
           NULL, "");
    expect("{\"precision\": \"bf16\", \"fp8\": {\"recipe\": \"row\"}, "
           "\"precision_switch\": {\"at\": 0.5, \"precision\": \"fp8\"}}",
           NULL, "");
    expect("{\"precision\": \"mxfp8\", \"fp8\": {\"require\": true}}", NULL, "");
    expect("{\"precision\": \"mxfp4\", \"mx\": {\"scales\": \"floor\"}}", NULL, "");
    expect("{\"precision\": \"bf16\", \"mx\": {\"scales\": \"floor\"}}", NULL,
           "mx.scales has no effect: precision is neither mxfp8 nor mxfp4\n");
    expect("{\"precision\": \"bf16\", \"nvfp4\": {\"hadamard\": false}}", NULL,
           "nvfp4.hadamard has no effect: precision is not nvfp4\n");
    expect("{\"precision\": \"nvfp4\", \"precision_switch\": {\"precision\": \"fp16\"}}", NULL,
           "precision_switch.precision has no effect: precision_switch.at is 0\n");
}

Test(config_effects, keys_of_other_optimizers_and_objectives) {
    expect("{\"optimizer\": {\"name\": \"sgd\", \"beta1\": 0.5, \"beta2\": 0.5, \"eps\": 1}}", NULL,
           "optimizer.beta1 has no effect: optimizer.name is sgd\n"
           "optimizer.beta2 has no effect: optimizer.name is sgd\n"
           "optimizer.eps has no effect: optimizer.name is sgd\n");
    expect("{\"optimizer\": {\"name\": \"lion\", \"beta1\": 0.5, \"eps\": 1}}", NULL,
           "optimizer.eps has no effect: optimizer.name is lion\n");
    expect("{\"optimizer\": {\"name\": \"muon\", \"beta1\": 0.5, \"eps\": 1}}", NULL, "");
    expect("{\"train\": {\"objective\": \"ipo\"}}", "objective.label_smoothing=0.2",
           "objective.label_smoothing has no effect: train.objective is ipo\n");
    expect("{\"train\": {\"objective\": \"kto\"}}", "objective.nll_weight=0.2",
           "objective.nll_weight has no effect: train.objective is kto\n");
    expect("{\"train\": {\"objective\": \"orpo\"}}", "objective.nll_weight=0.2", "");
    expect("{\"model\": {\"rope_theta\": 5, \"rope_factor\": 2}}", NULL,
           "model.rope_theta has no effect: model.positions is not rope\n"
           "model.rope_factor has no effect: model.positions is not rope\n");
    expect("{\"model\": {\"positions\": \"rope\"}}", "model.rope_factor=2",
           "model.rope_factor has no effect: model.rope_scaling is none\n");
    expect("{}", "adapter.targets=q_proj", "adapter.targets has no effect: adapter.type is none\n");
}

/* Only the precision and the device of a run that are still to be resolved may be any. */
Test(config_effects, keys_of_devices) {
    expect("{\"device\": \"cpu\"}", "tf32=true", "tf32 has no effect: this run is on a CPU\n");
    expect("{\"device\": \"auto\"}", "tf32=true", "");
    expect("{\"precision\": \"auto\"}", "loss_scale.init_scale=8", "");
    expect("{}", "ranks.gradients=lower",
           "ranks.gradients has no effect: this run has a single rank\n");
}

Test(config_effects, keys_of_16_bit_runs) {
    expect("{\"precision\": \"fp32\", \"autocast\": {\"residual\": \"lower\"}}", NULL,
           "autocast.residual has no effect: this run computes in fp32 everywhere\n");
    expect("{\"precision\": \"fp32\", \"gradients\": {\"dtype\": \"lower\"}, "
           "\"autocast\": {\"float32\": [\"lm_head\"]}}",
           NULL,
           "autocast.float32 has no effect: this run computes in fp32 everywhere\n"
           "gradients.dtype has no effect: this run computes in fp32 everywhere\n");
    expect("{\"precision\": \"fp16\", \"gradients\": {\"dtype\": \"lower\"}}", NULL, "");
    expect("{\"precision\": \"fp32\"}", "weights.copy=cast",
           "weights.copy has no effect: this run computes in fp32 everywhere\n");
    expect("{\"precision\": \"fp16\"}", "weights.copy=split",
           "weights.copy has no effect: the upper half of fp32 is bf16, and this run computes in "
           "fp16\n");
    expect("{\"precision\": \"bf16\"}", "weights.copy=split", "");
    expect("{\"precision\": \"fp16\"}", "weights.copy=cast", "");
    expect("{\"precision\": \"bf16\"}", "loss_scale.init_scale=8",
           "loss_scale.init_scale has no effect: precision is not fp16\n");
    expect("{\"precision\": \"fp16\"}", "loss_scale.init_scale=8", "");
    expect("{\"precision\": \"fp16\", \"autocast\": {\"enabled\": false}}",
           "loss_scale.init_scale=8",
           "precision has no effect: autocast.enabled is false\n"
           "loss_scale.init_scale has no effect: autocast.enabled is false\n");
    expect("{\"precision\": \"fp8\", \"fp8\": {\"recipe\": \"block\"}}", "fp8.format=e4m3",
           "fp8.format has no effect: fp8.recipe is block\n");
    expect("{\"precision\": \"bf16\"}", "weights.keep_quantized=true",
           "weights.keep_quantized has no effect: precision has no 8 or 4 bits\n");
}

/* A file's details of what a flag switches off are no surprise. */
Test(config_effects, details_of_what_a_flag_switches_off) {
    expect_warnings("{\"eval\": {\"batches\": 3}}", "eval.every=0", "");
    expect_warnings("{\"eval\": {\"every\": 0}}", "eval.batches=3",
                    "eval.batches has no effect: eval.every is 0\n");
    expect_warnings("{\"eval\": {\"every\": 0, \"batches\": 3}}", NULL,
                    "eval.batches has no effect: eval.every is 0\n");
    expect_warnings("{\"sample\": {\"every\": 9, \"prompt\": \"A\"}}", "sample.every=0", "");
}

Test(config_effects, rows_that_differ_are_those_in_use) {
    const struct config_option *rows[CONFIG_OPTION_LIMIT];
    struct config a, b;
    config_defaults(&a);
    b = a;
    cr_expect_eq(config_changed_rows(rows, &a, &b), 0);
    b.model.rope_theta = 5; /* positions are learned */
    b.model.n_kv_head = b.model.n_head;
    b.model.head_dim = b.model.n_embd / b.model.n_head;
    b.model.n_inner = 4 * b.model.n_embd;
    b.model.query_pre_attn_scalar = (double)b.model.head_dim;
    a.data.tokenizer = TOKENIZER_GPT2, b.data.tokenizer = TOKENIZER_FILES;
    cr_expect_eq(config_changed_rows(rows, &a, &b), 0, "%s", rows[0]->key);
    a.model.positions = b.model.positions = POSITIONS_ROPE;
    cr_assert_eq(config_changed_rows(rows, &a, &b), 1);
    cr_expect_str_eq(rows[0]->key, "model.rope_theta");
}

/* Keys that a value lists are keys of the block, and used with it. */
static void expect_used(const struct config *config, const char *block, const char *list) {
    char keys[200], path[100], *state = NULL;
    snprintf(keys, sizeof keys, "%s", list);
    for (char *key = strtok_r(keys, " ", &state); key; key = strtok_r(NULL, " ", &state)) {
        snprintf(path, sizeof path, "%s.%s", block, key);
        cr_assert_geq(config_option_index(path, strlen(path)), 0, "%s", path);
        cr_expect_null(config_unused_reason(config, config_option_of(path)), "%s", path);
    }
}

Test(config_effects, objectives_and_optimizers_list_keys) {
    struct config config;
    config_defaults(&config);
#define X(NAME, name, ROWS, has_reference, nll_weight, keys) \
    config.train.objective = CONFIG_OBJECTIVE_##NAME;        \
    expect_used(&config, "objective", keys);
    OBJECTIVES(X)
#undef X
#define X(NAME, word, keys)                          \
    config.optimizer.name = CONFIG_OPTIMIZER_##NAME; \
    expect_used(&config, "optimizer", keys);
    OPTIMIZERS(X)
#undef X
}
