/* Records of runs that ./compare reads: every figure, missing values and errors. */
#include <sys/stat.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "model/cli/metrics.h"
#include "test/model/lab/compare/run_fixture.h"

TestSuite(run_record, .init = make_folder, .fini = remove_folder);

static void expect_refused(const char *path, const char *part) {
    struct run_record run;
    error.text[0] = 0;
    cr_expect_eq(run_record_read(&run, path, &error), -1, "%s is read", path);
    expect_said(part);
    cr_expect_null(run.steps);
    run_record_close(&run);
}

Test(run_record, every_figure) {
    make_run((struct run_recipe){.name = "a run", .precision = "fp16", .seed = 7, .planned = 9});
    put_text("a run/metrics.jsonl",
             "{\"step\": 1, \"tokens\": 64, \"loss\": 5.5, \"lr\": 0.25, \"grad_norm\": 0.75, "
             "\"loss_scale\": 1024, \"skipped\": true, \"step_ms\": 12.5, \"tokens_per_s\": 5120, "
             "\"memory_bytes\": 1048576}\n"
             "{\"step\": 1, \"val_loss\": 4.5}\n"
             "{\"step\": 1, \"choices_acc\": 0.25, \"choices_acc_norm\": 0.5}\n"
             "{\"step\": 2, \"loss\": null, \"grad_norm\": null, \"skipped\": false}\n"
             "{\"step\": 2, \"val_loss\": null}\n");
    struct run_record run = read_run(in_folder("a run"));
    cr_expect_str_eq(run.path, in_folder("a run"));
    cr_expect_str_eq(run.name, "a run");
    cr_expect_str_eq(run.precision, "fp16");
    cr_expect(run.seed == 7 && run.planned_steps == 9 && !run.cut);
    cr_assert(arrlen(run.steps) == 2 && arrlen(run.validations) == 2);
    struct run_step first = run.steps[0], second = run.steps[1];
    cr_expect(first.step == 1 && first.loss == 5.5);
    cr_expect(first.gradient_norm == 0.75 && first.loss_scale == 1024 && first.skipped);
    cr_expect(first.tokens_per_s == 5120 && first.memory_bytes == 1048576);
    cr_expect(second.step == 2 && isnan(second.loss) && isnan(second.gradient_norm));
    cr_expect(isnan(second.loss_scale) && isnan(second.memory_bytes) && !second.skipped);
    cr_expect(run.validations[0].step == 1 && run.validations[0].loss == 4.5);
    cr_expect(first.tokens == 64 && run.validations[0].tokens == 64);
    cr_expect(isnan(second.tokens) && isnan(run.validations[1].tokens));
    cr_expect(run.validations[1].step == 2 && isnan(run.validations[1].loss));
    cr_expect_eq(run_record_last_step(&run), 2);
    cr_expect_null(run.profile.root);
    run_record_close(&run);
}

/* The reader accepts the output of the writer of metrics.jsonl. */
Test(run_record, reads_what_metrics_writes) {
    struct metrics metrics;
    const struct config config = {.log = {.metrics = true}};
    struct step_report report = {
        .step = 3, .tokens = 9, .loss = 1.25f, .gradient_norm = 0.5f, .loss_scale = 2, .lr = 0.125};
    make_run((struct run_recipe){.name = "x"});
    cr_assert_eq(metrics_open(&metrics, in_folder("x"), &config, 0, &error), 0, "%s", error.text);
    cr_assert_eq(metrics_step(&metrics, &report, 5, 250, 77, &error), 0);
    cr_assert_eq(metrics_validation(&metrics, 3, 1.5, NULL, &error), 0);
    metrics_close(&metrics);
    struct run_record run = read_run(in_folder("x"));
    cr_assert(arrlen(run.steps) == 1 && arrlen(run.validations) == 1);
    struct run_step step = run.steps[0];
    cr_expect(step.step == 3 && step.loss == 1.25 && step.gradient_norm == 0.5 && !step.skipped);
    cr_expect(step.loss_scale == 2 && step.tokens_per_s == 250);
    cr_expect(step.memory_bytes == 77 && run.validations[0].loss == 1.5);
    run_record_close(&run);
}

static void append(const char *name, const char *text) {
    FILE *file = open_in_folder(name, "a");
    fputs(text, file);
    cr_assert_eq(fclose(file), 0);
}

Test(run_record, a_cut_last_line_is_left_out) {
    make_run((struct run_recipe){.name = "x", .steps = 5});
    append("x/metrics.jsonl", "{\"step\": 6, \"loss\": 2.5}");
    struct run_record run = read_run(in_folder("x"));
    cr_expect(run.cut && run_record_last_step(&run) == 5);
    run_record_close(&run);
}

Test(run_record, invalid_lines) {
    static const char *const strange[] = {
        "hello\n",
        "\n",
        "{\"step\": 6, \"loss\": 2.5\n",
        "[6]\n",
        "{\"loss\": 2.5}\n",
        "{\"step\": 6}\n",
        "{\"step\": 6.5, \"loss\": 2}\n",
        "{\"step\": 5, \"loss\": 2}\n",
        "{\"step\": 4, \"loss\": 2}\n",
        "{\"step\": -1, \"val_loss\": 2}\n",
        "{\"step\": 5, \"val_loss\": 2}\n{\"step\": 5, \"val_loss\": 2}\n",
    };
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        make_run((struct run_recipe){.name = "x", .steps = 5});
        append("x/metrics.jsonl", strange[i]);
        expect_refused(in_folder("x"), i == 10 ? "metrics.jsonl:7: " : "metrics.jsonl:6: ");
    }
}

Test(run_record, directories_that_are_no_runs) {
    expect_refused(in_folder("none"), "no config.json");
    make_run((struct run_recipe){.name = "x", .steps = 5});
    put_text("x/metrics.jsonl", "");
    expect_refused(in_folder("x"), "no step");
    unlink(in_folder("x/metrics.jsonl"));
    expect_refused(in_folder("x"), "log.metrics=false");
    cr_assert_eq(mkfifo(in_folder("x/metrics.jsonl"), 0600), 0);
    expect_refused(in_folder("x"), "not a regular file");
    unlink(in_folder("x/metrics.jsonl"));
    make_run((struct run_recipe){.name = "x", .steps = 5});
    put_text("x/config.json", "{\"name\": \"x\",,}");
    expect_refused(in_folder("x"), "config.json");
    put_text("x/config.json", "{\"n_layer\": 2}");
    expect_refused(in_folder("x"), "no config of a run");
}

Test(run_record, profile) {
    make_run((struct run_recipe){.name = "x", .steps = 5});
    put_text("x/profile.json", "{\"precision\": \"bf16\", \"step_ms\": 8.5, \"products_ms\": 4.25, "
                               "\"operations\": {\"matmul\": 6, \"odd\": null, \"adamw\": 0.5}}");
    struct run_record run = read_run(in_folder("x"));
    cr_assert_not_null(run.profile.root);
    cr_expect_not_null(json_member(json_member(run.profile.root, "operations"), "matmul"));
    run_record_close(&run);
    put_text("x/profile.json", "{]");
    expect_refused(in_folder("x"), "profile.json");
}
