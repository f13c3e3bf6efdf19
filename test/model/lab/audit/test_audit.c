#include <cjson/cJSON.h>

#include "data/util/files.h"
#include "data/util/table.h"
#include "test/model/lab/audit/audit_fixture.h"

TestSuite(audit, .init = set_up_audit, .fini = remove_folder);

Test(audit, the_same_precision_twice_differs_in_nothing) {
    struct subject subject = {.stop = &not_stopped, .repetitions = 3};
    struct trainer first, second;
    struct audit_pass reference, again;
    cr_assert_eq(subject_open(&subject, &first, &config, NULL, &error), 0, "%s", error.text);
    cr_assert_eq(audit_pass_run(&reference, &subject, &first, NULL, PASS_TRACED, &error), 0);
    trainer_close(&first);
    cr_assert_eq(subject_trainer(&subject, &second, &subject.config, 1, &error), 0);
    cr_assert_eq(audit_pass_run(&again, &subject, &second, &reference, PASS_TRACED, &error), 0);
    cr_expect_eq(again.loss, reference.loss);
    cr_expect_eq(again.gradient_error, 0);
    for (int id = 0; id < TENSOR_IDS; id++)
        for (int layer = 0; layer < arrlen(reference.records[id]); layer++) {
            const struct record *record = &again.records[id][layer];
            cr_expect(record->seen, "%s", id_text(id));
            cr_expect_eq(record_error(record), 0, "%s", id_text(id));
            cr_expect_gt(record->reference, 0, "%s is all zero", id_text(id));
        }
    cr_expect_gt(reference.gradient_noise, 0);
    audit_pass_free(&reference);
    audit_pass_free(&again);
    trainer_close(&second);
    subject_close(&subject);
}

/* With one micro-batch per step, the second of two is the first of the next step. */
Test(audit, each_micro_batch_stands_alone) {
    struct subject subject = {.stop = &not_stopped, .repetitions = 2};
    struct trainer trainer;
    struct audit_pass two, one;
    cr_assert_eq(subject_open(&subject, &trainer, &config, NULL, &error), 0, "%s", error.text);
    cr_assert_eq(audit_pass_run(&two, &subject, &trainer, NULL, PASS_TRACED, &error), 0);
    subject.next_sample = config.train.micro_batch_size;
    subject.repetitions = 1;
    cr_assert_eq(audit_pass_run(&one, &subject, &trainer, NULL, PASS_TRACED, &error), 0);
    for (int i = 0; i < arrlen(one.records[PARAMETERS]); i++) {
        const struct record *record = &two.records[PARAMETERS][i];
        cr_expect_arr_eq(one.records[PARAMETERS][i].samples, record->samples + record->sample_count,
                         (size_t)record->sample_count * sizeof(float), "%s", two.list[i].name);
    }
    cr_expect_eq(one.gradient_noise, 0, "of one nobody knows");
    audit_pass_free(&one);
    audit_pass_free(&two);
    trainer_close(&trainer);
    subject_close(&subject);
}

/* Writes shards with a mask in which few tokens count, in the directory of the test. */
static void use_masked_text(void) {
    struct shard_writer writer;
    cr_assert_eq(shard_writer_open(&writer, in_folder("rows"), 256, 1000000, &error), 0);
    for (uint64_t i = 0; i < 5000; i++) {
        const uint16_t token = (uint16_t)(i * i % 251);
        const uint8_t counts = i % 97 < 11;
        cr_assert_eq(shard_writer_put_packed(&writer, &token, &counts, 1, &error), 0);
    }
    cr_assert_eq(shard_writer_finish(&writer, &error), 0, "%s", error.text);
    cr_assert_eq(shard_writer_publish(&writer, &error), 0, "%s", error.text);
    strcpy(config.data.train, in_folder("rows_*.bin"));
}

/* An audit of a checkpoint has the batches, loss and update of the run itself. */
static void check_step(bool masked) {
    struct run run;
    if (masked) use_masked_text();
    config.train.grad_accum_steps = 2;
    config.loss_scale.init_scale = 2048;
    make_checkpoint(7, NULL, 0);
    struct audit *audit = audit_of(path, both, 2);
    cr_expect(audit->subject.scale_of_run);
    cr_expect_not(audit->subject.fresh);
    cr_expect_eq(audit->subject.loss_scale, 2048);
    cr_expect_eq(audit->subject.step, 7);
    cr_expect_eq(audit->formats[AUDIT_FP16].pass.loss_scale, 2048);
    config.precision = CONFIG_PRECISION_FP32;
    open_run(&run);
    FILE *ignored = fopen("/dev/null", "w");
    cr_assert_eq(checkpoint_load(&run.trainer, path, ignored, &error), 0, "%s", error.text);
    fclose(ignored);
    float before;
    masters_download(&run.trainer.model.masters, &run.be, &before, 3, 1);
    struct step_report report = step(&run);
    cr_expect_float_eq(audit->reference.loss, (double)report.loss, 1e-5);
    cr_expect_eq(audit->update.step, report.step);
    cr_expect_eq(audit->update.lr, report.lr);
    cr_expect_eq(audit->subject.masters[3], before);
    double all = 0, trained = 0;
    for (int i = 0; i < arrlen(audit->reference.records[PARAMETERS]); i++)
        all += audit->update.parameters[i].signal;
    float *masters = masters_values(&run.trainer.model);
    for (int64_t i = 0; i < run.trainer.model.count; i++) {
        double moved = (double)masters[i] - (double)audit->subject.masters[i];
        trained += moved * moved;
    }
    free(masters);
    cr_expect_float_eq(all, trained, 1e-9 * trained, "the update is the run's");
    cr_expect_float_eq(audit->update.all.signal, trained, 1e-9 * trained);
    close_run(&run);
    close_audit(audit);
}

Test(audit, uses_the_next_step_of_the_run) {
    check_step(false);
}

Test(audit, masks_tokens_like_the_run) {
    check_step(true);
}

Test(audit, sixteen_bits_are_near_fp32_and_fp16_is_nearer) {
    struct audit *audit = audit_of(NULL, both, 2);
    double bf16 = audit->formats[AUDIT_BF16].pass.gradient_error;
    double fp16 = audit->formats[AUDIT_FP16].pass.gradient_error;
    cr_expect(bf16 > 1e-3 && bf16 < 3e-2, "bf16: %g", bf16);
    cr_expect(fp16 > 1e-4 && fp16 < 3e-3, "fp16: %g", fp16);
    cr_expect(audit->subject.fresh);
    cr_expect_not(audit->subject.scale_of_run);
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        const struct audit_format *format = &audit->formats[i];
        cr_expect(format->usable);
        cr_expect_eq(format->needed, 0);
        for (int word = 0; word < AUTOCAST_SITE_COUNT; word++)
            cr_expect_eq(format->trials[word].made,
                         autocast_site_is_choice((enum autocast_site)word));
        for (int id = ACTIVATION_ln1_out; id < TENSOR_IDS; id++) {
            if (arrlen(format->pass.records[id]) == 0) continue;
            double wrong = record_error(&format->pass.records[id][0]);
            cr_expect(wrong > 0 && wrong < 0.05, "%s: %g", id_text(id), wrong);
        }
        double removed = audit_format_removed(format, SITE_LM_HEAD);
        cr_expect(removed > 0.01 && removed < 1, "lm_head removes %g", removed);
        cr_expect_eq(audit_format_removed(format, SITE_GELU), 0, "alone it changes nothing");
    }
    close_audit(audit);
}

/* With all operations in float32 no error remains: the summation order is the same too. */
Test(audit, without_16_bit_operations_there_is_no_error) {
    unsigned all = 0;
    for (int i = 0; i < AUTOCAST_SITE_COUNT; i++)
        if (autocast_site_is_choice((enum autocast_site)i)) all |= 1u << i;
    sites_set(&config, all);
    struct audit *audit = audit_of(NULL, only_fp16, 1);
    cr_expect_eq(audit->formats[AUDIT_FP16].given, all);
    cr_expect_lt(audit->formats[AUDIT_FP16].pass.gradient_error, 1e-6);
    close_audit(audit);
}

/* The predicted share of zeros at scale 1 is the share that fp16 stores as zero. */
Test(audit, predicted_zeros_are_stored_zeros) {
    config.loss_scale.init_scale = 1;
    struct audit *audit = audit_of(NULL, only_fp16, 2);
    const int some[] = {tensor_id_of_gradient(ACTIVATION_logits),
                        tensor_id_of_gradient(ACTIVATION_mlp_fc),
                        tensor_id_of_gradient(ACTIVATION_qkv)};
    for (size_t i = 0; i < COUNT(some); i++) {
        const struct magnitudes *truth = &audit->reference.records[some[i]][0].magnitudes;
        const struct magnitudes *stored =
            &audit->formats[AUDIT_FP16].pass.records[some[i]][0].magnitudes;
        double predicted = magnitudes_lost(truth, 0);
        double found =
            (double)(stored->zeros - truth->zeros) / (double)(truth->count - truth->zeros);
        cr_expect_eq(stored->count, truth->count);
        cr_expect_float_eq(found, predicted, 0.02 + 0.2 * predicted, "%s: %g, predicted %g",
                           id_text(some[i]), found, predicted);
    }
    double qkv = magnitudes_lost(
        &audit->reference.records[tensor_id_of_gradient(ACTIVATION_qkv)][0].magnitudes, 0);
    cr_expect_gt(qkv, 0.001, "something underflows: %g", qkv);
    close_audit(audit);
}

Test(audit, stops_when_asked) {
    struct audit audit;
    const volatile sig_atomic_t stopped = 2;
    cr_expect_eq(audit_run(&audit, &config, NULL, both, 2, &stopped, &error), RESULT_STOPPED);
    cr_expect_null(audit.update.parameters);
    cr_expect_not(audit.reference.records[PARAMETERS][0].seen, "not even one micro-batch");
    audit_free(&audit);
}

Test(audit, settings_that_would_hide_16_bit_are_set_aside) {
    config.autocast.enabled = false;
    struct audit *audit = audit_of(NULL, only_fp16, 1);
    cr_expect_gt(audit->formats[AUDIT_FP16].pass.gradient_error, 0);
    close_audit(audit);
}

/* Recomputing, in which layers share memory, gives the same values. */
Test(audit, recomputing_changes_no_figure) {
    struct audit *kept = audit_of(NULL, only_fp16, 2);
    config.train.recompute = RECOMPUTE_LAYER;
    struct audit *again = audit_of(NULL, only_fp16, 2);
    const struct audit_pass *a = &kept->formats[AUDIT_FP16].pass;
    const struct audit_pass *b = &again->formats[AUDIT_FP16].pass;
    cr_expect_eq(a->gradient_error, b->gradient_error);
    for (int id = 0; id < TENSOR_IDS; id++)
        for (int layer = 0; layer < arrlen(a->records[id]); layer++) {
            const struct record *one = &a->records[id][layer], *other = &b->records[id][layer];
            cr_expect_eq(memcmp(&one->magnitudes, &other->magnitudes, sizeof one->magnitudes), 0,
                         "layer %d %s", layer, id_text(id));
            cr_expect_eq(record_error(one), record_error(other), "layer %d %s", layer, id_text(id));
        }
    close_audit(kept);
    close_audit(again);
}

Test(audit, a_model_of_other_sizes_is_an_error) {
    struct audit audit;
    make_checkpoint(1, NULL, 0);
    config.model.n_layer = 3;
    cr_expect_eq(audit_run(&audit, &config, path, both, 1, &not_stopped, &error), -1);
    cr_expect_not_null(strstr(error.text, "n_layer"), "%s", error.text);
    audit_free(&audit);
}

Test(audit, a_model_that_is_broken_in_fp32_is_an_error) {
    struct audit audit;
    make_checkpoint(1, &(const struct setting){"h.0.mlp.c_fc.bias", .value = INFINITY}, 1);
    cr_expect_eq(audit_run(&audit, &config, path, both, 1, &not_stopped, &error), -1);
    cr_expect_not_null(strstr(error.text, "in fp32 too"), "%s", error.text);
    audit_free(&audit);
}
