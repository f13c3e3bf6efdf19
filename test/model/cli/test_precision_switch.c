/* ./train with a change of precision: one run, one directory, resumed in each of its parts. */
#include "test/model/cli/program_fixture.h"

TestSuite(precision_switch, .init = set_up, .fini = remove_folder);

#define SWITCHES                                                                              \
    "--config|tiny.json|--set|precision=nvfp4|--set|threads=2|--set|checkpoint.keep=9|--set|" \
    "precision_switch.at=0.5"
#define LAST "/checkpoints/step-00000024/"

/* Counts the lines of a file with this text. */
static int lines_with(const char *name, const char *text) {
    size_t size;
    char *whole = read_whole(name, &size);
    int count = 0;
    for (const char *at = whole; (at = strstr(at, text)); at++) count++;
    free(whole);
    return count;
}

static void expect_same_end(const char *a, const char *b) {
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors"};
    for (int i = 0; i < 2; i++) {
        char first[200], second[200];
        snprintf(first, sizeof first, "%s" LAST "%s", a, files[i]);
        snprintf(second, sizeof second, "%s" LAST "%s", b, files[i]);
        expect_same_file(first, second);
    }
}

/* Copies run a/run to NAME/run, without the checkpoints after `step`, as if it had been killed. */
static void copy_until(const char *name, int step) {
    char command[4 * FILE_PATH_MAX];
    snprintf(command, sizeof command,
             "cd %s && mkdir %s && cp -r a/run %s/ && cd %s/run/checkpoints && for c in *; do "
             "[ ${c#step-} -le %08d ] || rm -r $c; done",
             folder, name, name, name, step);
    cr_assert_eq(system(command), 0);
}

Test(precision_switch, trains_and_resumes_in_both_parts) {
    expect_exit(SWITCHES, 0);
    cr_expect_not_null(strstr(out_text, "step 12: the precision changes"), "%s", out_text);
    expect_run_files("a/run");
    cr_expect_str_eq(names_in("a/run/checkpoints", ""),
                     "step-00000008 step-00000012 step-00000016 step-00000024");
    cr_expect_eq(lines_with("a/run/metrics.jsonl", "\"step_ms\""), 24);
    cr_expect_eq(lines_with("a/run/config.json", "\"precision\": \"nvfp4\""), 1);
    cr_expect_eq(
        lines_with("a/run/checkpoints/step-00000012/trainer.json", "\"precision\": \"nvfp4\""), 2);
    cr_expect_eq(lines_with("a/run" LAST "trainer.json", "\"precision\": \"nvfp4\""), 0);
    copy_until("b", 8);
    expect_exit(SWITCHES "|--set|run_dir=b|--resume", 0);
    expect_same_end("a/run", "b/run");
    copy_until("c", 16);
    expect_exit("--resume|c/run|--set|run_dir=c", 0);
    cr_expect_null(strstr(out_text, "nvfp4"), "the first part was trained again: %s", out_text);
    cr_expect_eq(lines_with("c/run/config.json", "\"precision\": \"nvfp4\""), 1);
    expect_same_end("a/run", "c/run");
    copy_until("d", 12);
    expect_exit(
        SWITCHES "|--set|run_dir=d|--set|precision=bf16|--set|precision_switch.at=0|--resume", 0);
    expect_same_end("a/run", "d/run");
}

/* The 188 sequences take 47 steps of 4, or 24 of 8. Resumed with 8 after step 16, they take 32. */
Test(precision_switch, follows_epochs_into_a_larger_batch) {
    expect_exit(SWITCHES "|--set|train.epochs=1|--set|precision_switch.at=28", 0);
    copy_until("b", 16);
    expect_exit("--resume|b/run|--set|run_dir=b|--set|train.grad_accum_steps=4", 0);
    cr_expect_not_null(strstr(out_text, "step 28: the precision changes"), "%s", out_text);
    cr_expect_null(strstr(error_text, "precision stays"), "%s", error_text);
    cr_expect_eq(last_step("b/run"), 32, "%ld", last_step("b/run"));
    copy_until("c", 40);
    expect_exit("--resume|c/run|--set|run_dir=c|--set|train.grad_accum_steps=4", 0);
    cr_expect_null(strstr(out_text, "nvfp4"), "it goes back: %s", out_text);
    cr_expect_eq(last_step("c/run"), 44, "%ld", last_step("c/run"));
}

Test(precision_switch, errors_and_notes) {
    expect_error("--config|tiny.json|--set|precision_switch.at=1.5", 2, "whole number");
    expect_exit("--config|tiny.json|--set|precision_switch.at=24", 0);
    cr_expect_not_null(strstr(error_text, "precision stays"), "%s", error_text);
    cr_expect_null(strstr(out_text, "precision changes"));
}

/* The second part begins with the checkpoint of the first. */
Test(precision_switch, needs_its_checkpoint) {
    file_bytes_max = 30000;
    expect_error(SWITCHES "|--set|checkpoint.on_error=continue", 1, "step-00000012.tmp");
    file_bytes_max = RLIM_INFINITY;
    expect_exit(SWITCHES "|--set|checkpoint.resume=auto", 0);
    cr_expect_eq(last_step("a/run"), 24);
}
