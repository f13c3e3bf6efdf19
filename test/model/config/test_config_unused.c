/* Settings that another key leaves without effect. */
#include "test/model/config/config_fixture.h"

#include "model/config/config_unused.h"

static void expect(const char *json, const char *flag, const char *expected) {
    struct fixture fixture;
    struct config config;
    char text[2000], *saved;
    fixture_open(&fixture);
    load_well(&fixture, &config, json, flag);
    config_unused(&config, text, sizeof text);
    cr_expect_str_eq(text, expected, "%s %s: %s", json, flag ? flag : "", text);
    /* The config that a checkpoint keeps, which has all keys, repeats only the file's values. */
    saved = dump(&config);
    load_well(&fixture, &config, saved, NULL);
    config_unused(&config, text, sizeof text);
    cr_expect(strlen(text) <= strlen(expected), "saved: %s", text);
    free(saved);
    fixture_close(&fixture);
}

Test(config_unused, keys_of_parts_that_are_off) {
    expect("{}", NULL, "");
    expect("{}", "adapter.rank=16", "adapter.rank has no effect: adapter.type is none\n");
    expect("{\"adapter\": {\"rank\": 16}}", NULL, "");
    expect("{\"adapter\": {\"rank\": 8, \"type\": \"lora\"}}", NULL, "");
    expect("{\"objective\": {\"beta\": 0.5}, \"distill\": {\"alpha\": 0.2}}", NULL,
           "objective.beta has no effect: train.objective is language\n"
           "distill.alpha has no effect: distill.logits is empty\n");
    expect("{\"optimizer\": {\"momentum\": 0.5, \"decay_fraction\": 0.5}}", NULL,
           "optimizer.decay_fraction has no effect: optimizer.schedule is not wsd\n"
           "optimizer.momentum has no effect: optimizer.name is neither muon nor sgd\n");
    expect("{\"optimizer\": {\"momentum\": 0.5, \"name\": \"sgd\"}}", NULL, "");
    expect("{\"optimizer\": {\"rounding_8bit\": \"stochastic\"}}", NULL,
           "optimizer.rounding_8bit has no effect: optimizer.moments is not int8\n");
}

Test(config_unused, keys_of_other_precisions) {
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
