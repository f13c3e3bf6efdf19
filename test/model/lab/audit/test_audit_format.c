#include <cjson/cJSON.h>

#include "data/util/files.h"
#include "data/util/table.h"
#include "model/io/config_file.h"
#include "test/model/lab/audit/audit_fixture.h"

TestSuite(audit_format, .init = set_up_audit, .fini = remove_folder);

/* Expects that training takes the step at this loss scale and skips it at twice the scale. */
static void expect_largest(int safe) {
    for (int more = 0; more <= 1; more++) {
        struct run run;
        open_run(&run);
        FILE *ignored = fopen("/dev/null", "w");
        cr_assert_eq(checkpoint_load(&run.trainer, path, ignored, &error), 0, "%s", error.text);
        fclose(ignored);
        run.trainer.state.scaler.loss_scale = ldexpf(1, safe + more);
        trainer_restore_scaler(&run.trainer);
        cr_expect_eq(step(&run).skipped, more == 1, "2^%d", safe + more);
        close_run(&run);
    }
}

Test(audit_format, the_safe_scale_is_safe_and_its_double_is_not) {
    config.train.grad_accum_steps = 2;
    make_checkpoint(3, NULL, 0);
    struct audit *audit = audit_of(path, only_fp16, 2);
    int safe = audit->formats[AUDIT_FP16].safe_scale;
    cr_expect(audit->formats[AUDIT_FP16].predicts);
    cr_expect_leq(abs(audit->formats[AUDIT_FP16].predicted_scale - safe), 1);
    expect_largest(safe);
    close_audit(audit);
}

/* 16-bit gradients are accumulated in 16 bit. Even with few repetitions a whole step must stay
 * finite, as in training. */
Test(audit_format, a_sum_of_16_bit_gradients_is_of_a_whole_step) {
    config.train.grad_accum_steps = 16;
    config.gradients.dtype = CONFIG_DTYPE_LOWER;
    make_checkpoint(3, NULL, 0);
    struct audit *audit = audit_of(path, only_fp16, 1);
    int safe = audit->formats[AUDIT_FP16].safe_scale;
    cr_expect_eq(audit_pass_tried(&audit->subject, &audit->formats[AUDIT_FP16].pass.precision), 16);
    cr_expect_eq(audit_pass_tried(&audit->subject, &audit->reference.precision), 1);
    expect_largest(safe);
    close_audit(audit);
}

/* A fast-growing dynamic scale settles within a factor 4 of the advice. */
Test(audit_format, the_advised_scale_is_where_training_settles) {
    struct run run;
    config.loss_scale.growth_interval = 2;
    open_run(&run);
    for (int i = 0; i < 60; i++) step(&run);
    save(&run);
    double sum = 0;
    for (int i = 0; i < 60; i++) sum += log2((double)step(&run).loss_scale);
    close_run(&run);
    struct audit *audit = audit_of(path, only_fp16, 4);
    cJSON *report = audit_report(audit);
    double advised = log2(json_number_at(report, "advice.configs.fp16.loss_scale.init_scale"));
    cr_expect_float_eq(advised, sum / 60, 2, "advised 2^%g, training is at 2^%.1f", advised,
                       sum / 60);
    cJSON_Delete(report);
    close_audit(audit);
}

/* A hidden unit beyond the fp16 range: GELU makes a large negative value 0 and keeps a positive
 * one. */
Test(audit_format, an_operation_that_overflows_is_named_and_kept_in_float32) {
    static const struct {
        float bias;
        unsigned needed;
    } cases[] = {{-7e4f, BIT(MLP_FC)}, {7e4f, BIT(MLP_FC) | BIT(MLP_PROJECTION)}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        tiny_config();
        config.optimizer.lr = 1e-6;
        config.precision = CONFIG_PRECISION_FP32;
        make_checkpoint(1, &(const struct setting){"h.1.mlp.c_fc.bias", .value = cases[i].bias}, 1);
        struct audit *audit = audit_of(path, both, 2);
        const struct audit_format *fp16 = &audit->formats[AUDIT_FP16];
        const struct record *record = &audit->reference.records[ACTIVATION_mlp_fc][1];
        cr_expect_lt(magnitudes_headroom(&record->magnitudes, 0), 0);
        cr_expect(fp16->usable);
        cr_expect_eq(fp16->needed, cases[i].needed, "needed: %x", fp16->needed);
        cr_expect_eq(audit->formats[AUDIT_BF16].needed, 0, "bf16 has the range");
        close_audit(audit);
    }
}

/* A sum below the limit in fp32 overflows in fp16 if its parts are rounded up: 65490 becomes 65504,
 * and 20 more give infinity. The fp32 figures do not show it. */
Test(audit_format, an_overflow_hidden_in_fp32_is_found) {
    static const struct setting settings[] = {{"h.1.ln_2.weight", .value = 0},
                                              {"h.1.ln_2.bias", .value = 62.5f},
                                              {"h.1.mlp.c_fc.weight", .value = 0.01f},
                                              {"h.1.mlp.c_fc.bias", .value = 65490}};
    config.precision = CONFIG_PRECISION_FP32;
    make_checkpoint(1, settings, COUNT(settings));
    struct audit *audit = audit_of(path, only_fp16, 1);
    const struct record *record = &audit->reference.records[ACTIVATION_mlp_fc][1];
    cr_expect_lt((double)record->magnitudes.largest, FP16_OVERFLOW);
    cr_expect(audit->formats[AUDIT_FP16].usable);
    cr_expect_eq(audit->formats[AUDIT_FP16].needed, BIT(MLP_FC));
    close_audit(audit);
}

/* Without operations in float32 the same model is not finite; the audit finds its first such
 * tensor. */
Test(audit_format, the_first_infinite_tensor_is_found) {
    struct subject subject = {.stop = &not_stopped, .repetitions = 1};
    struct trainer reference_trainer, trainer;
    struct audit_pass reference, pass;
    config.precision = CONFIG_PRECISION_FP32;
    make_checkpoint(1, &(const struct setting){"h.1.mlp.c_fc.bias", .value = 7e4f}, 1);
    cr_assert_eq(subject_open(&subject, &reference_trainer, &config, path, &error), 0, "%s",
                 error.text);
    cr_assert_eq(
        audit_pass_run(&reference, &subject, &reference_trainer, NULL, PASS_TRACED, &error), 0);
    trainer_close(&reference_trainer);
    struct config fp16 = subject.config;
    fp16.precision = CONFIG_PRECISION_FP16;
    cr_assert_eq(subject_trainer(&subject, &trainer, &fp16, 1, &error), 0);
    cr_assert_eq(audit_pass_run(&pass, &subject, &trainer, &reference, PASS_TRACED, &error), 0);
    cr_expect_eq(pass.first_infinite, ACTIVATION_mlp_fc);
    cr_expect_not(pass.finite);
    cr_expect_eq(pass.gradient_error, INFINITY);
    audit_pass_free(&pass);
    audit_pass_free(&reference);
    trainer_close(&trainer);
    subject_close(&subject);
}

/* Embeddings beyond the fp16 range need autocast.residual, not an operation in float32. */
Test(audit_format, a_residual_stream_that_overflows_is_kept_in_float32) {
    static const struct {
        struct setting setting;
        unsigned needed;
    } cases[] = {{{"wpe.weight", .value = 7e4f}, 0},
                 {{"h.0.attn.c_proj.bias", .value = 7e4f}, BIT(ATTENTION_PROJECTION)}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        tiny_config();
        config.precision = CONFIG_PRECISION_FP32;
        config.autocast.residual = CONFIG_DTYPE_LOWER;
        make_checkpoint(1, &cases[i].setting, 1);
        struct audit *audit = audit_of(path, both, 1);
        const struct audit_format *fp16 = &audit->formats[AUDIT_FP16];
        cr_expect(fp16->usable);
        cr_expect(fp16->needs_residual);
        cr_expect_eq(fp16->needed, cases[i].needed, "needed: %x", fp16->needed);
        cr_expect_eq(fp16->pass.precision.residual, DTYPE_F32);
        cr_expect_not(audit->formats[AUDIT_BF16].needs_residual, "bf16 has the range");
        close_audit(audit);
    }
}

/* Sums that are infinite only in fp16 are found by the id of the first infinity. */
Test(audit_format, a_residual_stream_infinite_only_in_fp16_is_found) {
    static const struct setting settings[] = {{"wpe.weight", .value = 65490},
                                              {"h.0.attn.c_attn.weight", .value = 0},
                                              {"h.0.attn.c_proj.weight", .value = 0},
                                              {"h.0.attn.c_proj.bias", .value = 20}};
    config.precision = CONFIG_PRECISION_FP32;
    config.autocast.residual = CONFIG_DTYPE_LOWER;
    make_checkpoint(1, settings, COUNT(settings));
    struct audit *audit = audit_of(path, only_fp16, 1);
    const struct record *record = &audit->reference.records[ACTIVATION_residual_mid][0];
    cr_expect_lt((double)record->magnitudes.largest, FP16_OVERFLOW);
    cr_expect(audit->formats[AUDIT_FP16].usable);
    cr_expect(audit->formats[AUDIT_FP16].needs_residual);
    cr_expect_eq(audit->formats[AUDIT_FP16].needed, 0);
    close_audit(audit);
}

/* Gradients so large that the search must go below 2^-14, which min_scale allows: hidden units of 0
 * hide huge weights in the forward pass, but not in the backward pass. */
Test(audit_format, the_search_goes_down_to_min_scale) {
    static const struct setting settings[] = {{"h.1.mlp.c_fc.weight", .value = 0},
                                              {"h.1.mlp.c_fc.bias", .value = 0},
                                              {"ln_f.weight", .value = 1e5f},
                                              {"h.1.mlp.c_proj.weight", .times = 1e6f}};
    static const double smallest[] = {1e-6, 0x1p-14};
    config.precision = CONFIG_PRECISION_FP32;
    config.data.seq_len = 4;
    config.train.micro_batch_size = 1;
    make_checkpoint(0, settings, COUNT(settings));
    for (size_t i = 0; i < COUNT(smallest); i++) {
        config.loss_scale.min_scale = smallest[i];
        sites_set(&config, BIT(LM_HEAD));
        struct audit *audit = audit_of(path, only_fp16, 1);
        const struct audit_format *fp16 = &audit->formats[AUDIT_FP16];
        cr_expect_eq(fp16->needed == 0, i == 0, "%g: %x", smallest[i], fp16->needed);
        if (i == 0) cr_expect(fp16->usable && fp16->safe_scale < -14, "2^%d", fp16->safe_scale);
        close_audit(audit);
    }
}

/* ---- words of autocast.float32 */

Test(audit_format, advised_settings_survive_a_config) {
    config_defaults(&config);
    cr_expect_eq(sites_of_config(&config), 0);
    unsigned sites = BIT(QKV) | BIT(GELU) | BIT(LM_HEAD);
    sites_set(&config, sites);
    cr_expect_eq(config.autocast.float32.count, 3);
    cr_expect_eq(sites_of_config(&config), sites);
    sites_set(&config, BIT(LAYERNORM));
    cr_expect_eq(config.autocast.float32.count, 0, "what is fp32 in any case is no word");
}

/* The operations are exactly those that the config accepts. */
Test(audit_format, advised_choices_are_those_of_the_config) {
    int choices = 0;
    for (int i = 0; i < AUTOCAST_SITE_COUNT; i++) {
        char text[200];
        enum autocast_site operation = (enum autocast_site)i;
        snprintf(text, sizeof text, "autocast.float32=%s", autocast_site_name(operation));
        char *overrides[] = {text};
        config_defaults(&config);
        strcpy(config.name, "x");
        bool taken = config_override(&config, "x.json", overrides, 1, &error) == 0;
        cr_expect_eq(taken, autocast_site_is_choice(operation), "%s", text);
        choices += taken;
    }
    cr_expect_eq(choices, 7);
}
