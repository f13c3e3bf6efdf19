#include "model/lab/advice.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "model/checkpoint.h"
#include "test/scratch.h"

#define BIT(id)      (1u << OPERATION_##id)
#define COUNT(array) (sizeof(array) / sizeof *(array))

TestSuite(audit, .init = make_folder, .fini = remove_folder);

static const volatile sig_atomic_t not_stopped = 0;
static const bool both[AUDIT_FORMATS] = {true, true};
static const bool only_fp16[AUDIT_FORMATS] = {[AUDIT_FP16] = true};

static void tiny_config(struct config *config) {
    config_defaults(config);
    strcpy(config->name, "tiny");
    config->device = CONFIG_DEVICE_CPU;
    config->threads = 1;
    config->precision = CONFIG_PRECISION_FP16;
    config->model.n_layer = 2;
    config->model.n_head = 2;
    config->model.n_embd = 32;
    config->model.n_positions = 32;
    config->model.vocab_size = 256;
    strcpy(config->data.train, "tales");
    config->data.seq_len = 32;
    config->train.steps = 200;
    config->train.micro_batch_size = 2;
    config->train.grad_accum_steps = 1;
    config->optimizer.lr = 3e-3;
    config->optimizer.warmup_steps = 5;
}

/* A trainer of its own, as a run would open it. */
struct run {
    struct config config;
    struct backend be;
    struct source text;
    struct trainer trainer;
};

static void open_run(struct run *run, const struct config *config) {
    char note[ERROR_MAX];
    struct precision precision;
    run->config = *config;
    cr_assert_eq(setup_backend(&run->be, config, NULL, error), 0, "%s", error);
    cr_assert_eq(precision_resolve(&precision, note, config, &run->be, error), 0, "%s", error);
    cr_assert_eq(source_open(&run->text, config, config->data.train, false, error), 0, "%s", error);
    cr_assert_eq(trainer_open(&run->trainer, &run->config, &precision, &run->be, true, error), 0,
                 "%s", error);
}

static void close_run(struct run *run) {
    trainer_close(&run->trainer);
    source_close(&run->text);
    backend_close(&run->be);
}

static struct step_report step(struct run *run) {
    struct step_report report;
    cr_assert_eq(trainer_begin_step(&run->trainer, &run->text.loader, error), 0, "%s", error);
    cr_assert_eq(trainer_end_step(&run->trainer, &report, error), 0, "%s", error);
    return report;
}

static void save(struct run *run, char path[FILE_PATH_MAX]) {
    cr_assert_eq(checkpoint_save(&run->trainer, in_folder("run"), path, error), 0, "%s", error);
}

struct setting {
    const char *parameter;
    float value; /* of all its elements */
};

static void set(struct gpt *gpt, const struct setting *setting) {
    for (int i = 0; i < (int)arrlen(gpt->list); i++) {
        if (strcmp(gpt->list[i].name, setting->parameter) != 0) continue;
        struct tensor view = gpt_parameter_view(&gpt->master, &gpt->list[i]);
        for (int64_t k = 0; k < tensor_count(&view); k++) ((float *)view.data)[k] = setting->value;
        gpt_refresh_lower(gpt);
        return;
    }
    cr_assert_fail("no parameter %s", setting->parameter);
}

/* Trains `steps` steps, then sets parameters, and saves. */
static void make_checkpoint(char path[FILE_PATH_MAX], const struct config *config, int steps,
                            const struct setting *settings, int count) {
    struct run run;
    open_run(&run, config);
    for (int i = 0; i < steps; i++) step(&run);
    for (int i = 0; i < count; i++) set(&run.trainer.gpt, &settings[i]);
    save(&run, path);
    close_run(&run);
}

static struct audit *audit_of(const struct config *config, const char *from,
                              const bool wanted[AUDIT_FORMATS], int repetitions) {
    struct audit *audit = calloc(1, sizeof *audit);
    cr_assert_not_null(audit);
    cr_assert_eq(audit_run(audit, config, from, wanted, repetitions, &not_stopped, NULL, error), 0,
                 "%s", error);
    return audit;
}

static void close_audit(struct audit *audit) {
    audit_free(audit);
    free(audit);
}

Test(audit, the_same_precision_twice_differs_in_nothing) {
    struct config config;
    struct subject subject = {.stop = &not_stopped, .repetitions = 3};
    struct trainer first, second;
    struct audit_pass reference, again;
    tiny_config(&config);
    cr_assert_eq(subject_open(&subject, &first, &config, NULL, error), 0, "%s", error);
    cr_assert_eq(audit_pass_run(&reference, &subject, &first, NULL, PASS_TRACED, error), 0);
    trainer_close(&first);
    cr_assert_eq(subject_trainer(&subject, &second, &subject.config, 1, error), 0);
    cr_assert_eq(audit_pass_run(&again, &subject, &second, &reference, PASS_TRACED, error), 0);
    cr_expect_eq(again.loss, reference.loss);
    cr_expect_eq(again.gradient_error, 0);
    for (int place = 0; place < PLACES; place++)
        for (int layer = 0; layer < (place_is_layered(place) ? 2 : 1); layer++) {
            const struct record *record = &again.places[place][layer];
            cr_expect(record->seen, "%s", place_name(place));
            cr_expect_eq(record_error(record), 0, "%s", place_name(place));
            cr_expect_gt(record->reference, 0, "%s is all zero", place_name(place));
        }
    cr_expect_gt(reference.gradient_noise, 0);
    audit_pass_free(&reference);
    audit_pass_free(&again);
    trainer_close(&second);
    subject_close(&subject);
}

/* The second micro-batch of two is the first of the step after, where a step has one. */
Test(audit, each_micro_batch_stands_alone) {
    struct config config;
    struct subject subject = {.stop = &not_stopped, .repetitions = 2};
    struct trainer trainer;
    struct audit_pass two, one;
    tiny_config(&config);
    cr_assert_eq(subject_open(&subject, &trainer, &config, NULL, error), 0, "%s", error);
    cr_assert_eq(audit_pass_run(&two, &subject, &trainer, NULL, PASS_TRACED, error), 0);
    subject.step = 1;
    subject.repetitions = 1;
    cr_assert_eq(audit_pass_run(&one, &subject, &trainer, NULL, PASS_TRACED, error), 0);
    for (int i = 0; i < one.parameter_count; i++) {
        const struct record *record = &two.parameters[i];
        cr_expect_arr_eq(one.parameters[i].samples, record->samples + record->sample_count,
                         (size_t)record->sample_count * sizeof(float), "%s",
                         two.parameter_names[i]);
    }
    cr_expect_eq(one.gradient_noise, 0, "of one nobody knows");
    audit_pass_free(&one);
    audit_pass_free(&two);
    trainer_close(&trainer);
    subject_close(&subject);
}

/* The same batches, loss and update as the run itself, from a checkpoint in the middle. */
Test(audit, looks_at_the_step_that_the_run_would_take) {
    struct config config;
    struct run run;
    char path[FILE_PATH_MAX];
    tiny_config(&config);
    config.train.grad_accum_steps = 2;
    config.loss_scale.init_scale = 2048;
    make_checkpoint(path, &config, 7, NULL, 0);
    struct audit *audit = audit_of(&config, path, both, 2);
    cr_expect(audit->subject.settled);
    cr_expect_not(audit->subject.fresh);
    cr_expect_eq(audit->subject.loss_scale, 2048);
    cr_expect_eq(audit->subject.step, 7);
    cr_expect_eq(audit->formats[AUDIT_FP16].pass.loss_scale, 2048);
    config.precision = CONFIG_PRECISION_FP32;
    open_run(&run, &config);
    FILE *ignored = fopen("/dev/null", "w");
    cr_assert_eq(checkpoint_load(&run.trainer, path, ignored, error), 0, "%s", error);
    fclose(ignored);
    float before = ((float *)run.trainer.gpt.master.data)[3];
    struct step_report report = step(&run);
    cr_expect_float_eq(audit->reference.loss, (double)report.loss, 1e-5);
    cr_expect_eq(audit->update.step, report.step);
    cr_expect_eq(audit->update.lr, report.lr);
    cr_expect_eq(audit->subject.masters[3], before);
    double all = 0, trained = 0;
    for (int i = 0; i < audit->reference.parameter_count; i++)
        all += audit->update.parameters[i].signal;
    const float *masters = run.trainer.gpt.master.data;
    for (int64_t i = 0; i < run.trainer.gpt.count; i++) {
        double moved = (double)masters[i] - (double)audit->subject.masters[i];
        trained += moved * moved;
    }
    cr_expect_float_eq(all, trained, 1e-9 * trained, "the update is the run's");
    cr_expect_float_eq(audit->update.all.signal, trained, 1e-9 * trained);
    close_run(&run);
    close_audit(audit);
}

Test(audit, sixteen_bits_are_near_fp32_and_fp16_is_nearer) {
    struct config config;
    tiny_config(&config);
    struct audit *audit = audit_of(&config, NULL, both, 2);
    double bf16 = audit->formats[AUDIT_BF16].pass.gradient_error;
    double fp16 = audit->formats[AUDIT_FP16].pass.gradient_error;
    cr_expect(bf16 > 1e-3 && bf16 < 3e-2, "bf16: %g", bf16);
    cr_expect(fp16 > 1e-4 && fp16 < 3e-3, "fp16: %g", fp16);
    cr_expect(audit->subject.fresh);
    cr_expect_not(audit->subject.settled);
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        const struct audit_format *format = &audit->formats[i];
        cr_expect(format->usable);
        cr_expect_eq(format->needed, 0);
        for (int word = 0; word < AUTOCAST_OPERATION_COUNT; word++)
            cr_expect_eq(format->trials[word].made, word_is_choice((enum autocast_operation)word));
        for (int place = PLACE_LN1; place < PLACES; place++) {
            double wrong = record_error(&format->pass.places[place][0]);
            cr_expect(wrong > 0 && wrong < 0.05, "%s: %g", place_name(place), wrong);
        }
        double removed = audit_format_removed(format, OPERATION_LM_HEAD);
        cr_expect(removed > 0.01 && removed < 1, "lm_head removes %g", removed);
        cr_expect_eq(audit_format_removed(format, OPERATION_GELU), 0, "alone it changes nothing");
    }
    close_audit(audit);
}

/* All operations in float32: nothing is left but the order of sums, which is the same. */
Test(audit, without_16_bit_operations_there_is_no_error) {
    struct config config;
    tiny_config(&config);
    unsigned all = 0;
    for (int i = 0; i < AUTOCAST_OPERATION_COUNT; i++)
        if (word_is_choice((enum autocast_operation)i)) all |= 1u << i;
    words_set(&config, all);
    struct audit *audit = audit_of(&config, NULL, only_fp16, 1);
    cr_expect_eq(audit->formats[AUDIT_FP16].given, all);
    cr_expect_lt(audit->formats[AUDIT_FP16].pass.gradient_error, 1e-6);
    close_audit(audit);
}

/* What fp16 is said to lose at scale 1 is what it stores as zero there. */
Test(audit, predicted_zeros_are_stored_zeros) {
    struct config config;
    tiny_config(&config);
    config.loss_scale.init_scale = 1;
    struct audit *audit = audit_of(&config, NULL, only_fp16, 2);
    static const enum place some[] = {PLACE_D_LOGITS, PLACE_D_MLP_FC, PLACE_D_QKV};
    for (size_t i = 0; i < COUNT(some); i++) {
        const struct magnitudes *truth = &audit->reference.places[some[i]][0].magnitudes;
        const struct magnitudes *stored =
            &audit->formats[AUDIT_FP16].pass.places[some[i]][0].magnitudes;
        double predicted = magnitudes_lost(truth, 0);
        double found =
            (double)(stored->zeros - truth->zeros) / (double)(truth->count - truth->zeros);
        cr_expect_eq(stored->count, truth->count);
        cr_expect_float_eq(found, predicted, 0.02 + 0.2 * predicted, "%s: %g, predicted %g",
                           place_name(some[i]), found, predicted);
    }
    double qkv = magnitudes_lost(&audit->reference.places[PLACE_D_QKV][0].magnitudes, 0);
    cr_expect_gt(qkv, 0.001, "something underflows: %g", qkv);
    close_audit(audit);
}

/* Training agrees: at the safe scale the step is taken, at twice that it is skipped. */
Test(audit, the_safe_scale_is_safe_and_its_double_is_not) {
    struct config config;
    char path[FILE_PATH_MAX];
    tiny_config(&config);
    config.train.grad_accum_steps = 2;
    make_checkpoint(path, &config, 3, NULL, 0);
    struct audit *audit = audit_of(&config, path, only_fp16, 2);
    int safe = audit->formats[AUDIT_FP16].safe_scale;
    cr_expect(audit->formats[AUDIT_FP16].predicts);
    cr_expect_leq(abs(audit->formats[AUDIT_FP16].predicted_scale - safe), 1);
    for (int more = 0; more <= 1; more++) {
        struct run run;
        open_run(&run, &config);
        FILE *ignored = fopen("/dev/null", "w");
        cr_assert_eq(checkpoint_load(&run.trainer, path, ignored, error), 0, "%s", error);
        fclose(ignored);
        run.trainer.state.scaler.loss_scale = ldexpf(1, safe + more);
        trainer_restore_scaler(&run.trainer);
        cr_expect_eq(step(&run).skipped, more == 1, "2^%d", safe + more);
        close_run(&run);
    }
    close_audit(audit);
}

/* Where the dynamic scale goes when it may grow fast: within a factor 4 of the advice. */
Test(audit, the_advised_scale_is_where_training_settles) {
    struct config config;
    struct run run;
    struct advice advice;
    char path[FILE_PATH_MAX];
    tiny_config(&config);
    config.loss_scale.growth_interval = 2;
    open_run(&run, &config);
    for (int i = 0; i < 60; i++) step(&run);
    save(&run, path);
    double sum = 0;
    for (int i = 0; i < 60; i++) sum += log2((double)step(&run).loss_scale);
    close_run(&run);
    struct audit *audit = audit_of(&config, path, only_fp16, 4);
    advice_make(&advice, audit);
    int advised = advice.formats[AUDIT_FP16].init_scale;
    cr_expect_float_eq(advised, sum / 60, 2, "advised 2^%d, training is at 2^%.1f", advised,
                       sum / 60);
    advice_free(&advice);
    close_audit(audit);
}

/* A hidden unit beyond fp16: far below zero the GELU makes it 0, far above it stays. */
Test(audit, an_operation_that_overflows_is_named_and_float32_heals_it) {
    static const struct {
        float bias;
        unsigned needed;
    } cases[] = {{-7e4f, BIT(MLP_FC)}, {7e4f, BIT(MLP_FC) | BIT(MLP_PROJECTION)}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config config;
        struct advice advice;
        char path[FILE_PATH_MAX];
        tiny_config(&config);
        config.optimizer.lr = 1e-6;
        config.precision = CONFIG_PRECISION_FP32;
        make_checkpoint(path, &config, 1,
                        &(const struct setting){"h.1.mlp.c_fc.bias", cases[i].bias}, 1);
        struct audit *audit = audit_of(&config, path, both, 2);
        const struct audit_format *fp16 = &audit->formats[AUDIT_FP16];
        const struct record *record = &audit->reference.places[PLACE_MLP_FC][1];
        cr_expect_lt(magnitudes_headroom(&record->magnitudes, 0), 0);
        cr_expect(fp16->usable);
        cr_expect_eq(fp16->needed, cases[i].needed, "needed: %x", fp16->needed);
        cr_expect_eq(audit->formats[AUDIT_BF16].needed, 0, "bf16 has the range");
        advice_make(&advice, audit);
        bool named = false;
        for (ptrdiff_t k = 0; k < arrlen(advice.texts); k++)
            named = named || strstr(advice.texts[k], "Keep \"mlp_fc\"");
        cr_expect(named);
        cr_expect_eq(advice.formats[AUDIT_FP16].words, cases[i].needed);
        advice_free(&advice);
        close_audit(audit);
    }
}

/* What fp32 holds just so overflows where fp16 has rounded its parts up: 65490 is 65504 there, and
 * 20 more are infinite. No figure of fp32 tells. */
Test(audit, an_overflow_that_fp32_does_not_show_is_healed_too) {
    static const struct setting settings[] = {{"h.1.ln_2.weight", 0},
                                              {"h.1.ln_2.bias", 62.5f},
                                              {"h.1.mlp.c_fc.weight", 0.01f},
                                              {"h.1.mlp.c_fc.bias", 65490}};
    struct config config;
    char path[FILE_PATH_MAX];
    tiny_config(&config);
    config.precision = CONFIG_PRECISION_FP32;
    make_checkpoint(path, &config, 1, settings, COUNT(settings));
    struct audit *audit = audit_of(&config, path, only_fp16, 1);
    const struct record *record = &audit->reference.places[PLACE_MLP_FC][1];
    cr_expect_lt((double)record->magnitudes.largest, FP16_OVERFLOW);
    cr_expect(audit->formats[AUDIT_FP16].usable);
    cr_expect_eq(audit->formats[AUDIT_FP16].needed, BIT(MLP_FC));
    close_audit(audit);
}

/* Without the words the same model gives nothing finite; the audit sees where that begins. */
Test(audit, the_first_infinite_place_is_found) {
    struct config config;
    struct subject subject = {.stop = &not_stopped, .repetitions = 1};
    struct trainer reference_trainer, trainer;
    struct audit_pass reference, pass;
    char path[FILE_PATH_MAX];
    tiny_config(&config);
    config.precision = CONFIG_PRECISION_FP32;
    make_checkpoint(path, &config, 1, &(const struct setting){"h.1.mlp.c_fc.bias", 7e4f}, 1);
    cr_assert_eq(subject_open(&subject, &reference_trainer, &config, path, error), 0, "%s", error);
    cr_assert_eq(audit_pass_run(&reference, &subject, &reference_trainer, NULL, PASS_TRACED, error),
                 0);
    trainer_close(&reference_trainer);
    struct config fp16 = subject.config;
    fp16.precision = CONFIG_PRECISION_FP16;
    cr_assert_eq(subject_trainer(&subject, &trainer, &fp16, 1, error), 0);
    cr_assert_eq(audit_pass_run(&pass, &subject, &trainer, &reference, PASS_TRACED, error), 0);
    cr_expect_eq(pass.first_infinite, PLACE_MLP_FC);
    cr_expect_not(pass.finite);
    cr_expect_eq(pass.gradient_error, INFINITY);
    audit_pass_free(&pass);
    audit_pass_free(&reference);
    trainer_close(&trainer);
    subject_close(&subject);
}

Test(audit, what_no_word_heals_is_not_usable) {
    struct config config;
    struct advice advice;
    char path[FILE_PATH_MAX];
    tiny_config(&config);
    config.precision = CONFIG_PRECISION_FP32;
    config.autocast.residual = CONFIG_DTYPE_LOWER;
    make_checkpoint(path, &config, 1, &(const struct setting){"h.0.attn.c_proj.bias", 7e4f}, 1);
    struct audit *audit = audit_of(&config, path, only_fp16, 1);
    cr_expect_not(audit->formats[AUDIT_FP16].usable);
    advice_make(&advice, audit);
    cr_expect_eq(advice.format, DTYPE_F32);
    advice_free(&advice);
    close_audit(audit);
}

Test(audit, stops_when_asked) {
    struct config config;
    struct audit audit;
    const volatile sig_atomic_t stopped = 2;
    tiny_config(&config);
    cr_expect_eq(audit_run(&audit, &config, NULL, both, 2, &stopped, NULL, error), 1);
    cr_expect_not(audit.update.made);
    cr_expect_not(audit.reference.parameters[0].seen, "not even one micro-batch");
    audit_free(&audit);
}

Test(audit, settings_that_would_hide_16_bit_are_set_aside) {
    struct config config;
    tiny_config(&config);
    config.autocast.enabled = false;
    config.train.recompute = CONFIG_RECOMPUTE_LAYER;
    struct audit *audit = audit_of(&config, NULL, only_fp16, 1);
    cr_expect_gt(audit->formats[AUDIT_FP16].pass.gradient_error, 0);
    close_audit(audit);
}

Test(audit, a_model_of_other_sizes_is_an_error) {
    struct config config;
    struct audit audit;
    char path[FILE_PATH_MAX];
    tiny_config(&config);
    make_checkpoint(path, &config, 1, NULL, 0);
    config.model.n_layer = 3;
    cr_expect_eq(audit_run(&audit, &config, path, both, 1, &not_stopped, NULL, error), -1);
    cr_expect_not_null(strstr(error, "n_layer"), "%s", error);
    audit_free(&audit);
}

Test(audit, a_model_that_is_broken_in_fp32_is_an_error) {
    struct config config;
    struct audit audit;
    char path[FILE_PATH_MAX];
    tiny_config(&config);
    make_checkpoint(path, &config, 1, &(const struct setting){"h.0.mlp.c_fc.bias", INFINITY}, 1);
    cr_expect_eq(audit_run(&audit, &config, path, both, 1, &not_stopped, NULL, error), -1);
    cr_expect_not_null(strstr(error, "in fp32 too"), "%s", error);
    audit_free(&audit);
}
