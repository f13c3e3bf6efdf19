/* The program ./train --audit. */
#include "test/model/cli/program_fixture.h"

#include <cjson/cJSON.h>

#include "data/util/json.h"
#include "test/caught.h"

TestSuite(audit_program, .init = set_up, .fini = remove_folder);

#define AUDIT "--audit|--config|tiny.json|--repetitions|2"

static void expect_text(const char *text, const char *part) {
    cr_expect_not_null(strstr(text, part), "\"%s\" is not in: %s", part, text);
}

static void expect_narrow(const char *text) {
    while (*text) {
        size_t length = strcspn(text, "\n");
        cr_expect_leq(length, 80, "%zu columns: %.*s", length, (int)length, text);
        text += length + (text[length] == '\n');
    }
}

static struct json_file read_json(const char *name) {
    struct json_file file;
    cr_assert_eq(json_file_open(&file, in_folder("%s", name), &error), 0, "%s", error.text);
    return file;
}

static const cJSON *at(const cJSON *object, const char *key) {
    const cJSON *member = json_member(object, key);
    cr_assert_not_null(member, "no %s", key);
    return member;
}

/* All values of a tensor are counted, and figures of a loss scale of 3000 are at 2^12. */
static void expect_figures(const cJSON *entry) {
    const cJSON *count;
    double values = at(entry, "zeros")->valuedouble + at(entry, "infinite")->valuedouble;
    cJSON_ArrayForEach(count, at(at(entry, "exponents"), "counts")) values += count->valuedouble;
    cr_expect_eq(values, at(entry, "values")->valuedouble, "every value is somewhere");
    if (!cJSON_IsTrue(at(entry, "gradient"))) return;
    double unscaled = at(at(entry, "unscaled"), "room")->valuedouble;
    cr_expect_float_eq(at(at(entry, "scaled"), "room")->valuedouble, unscaled - 12, 1e-9);
}

Test(audit_program, prints_and_writes_a_report) {
    const cJSON *entry;
    expect_exit(AUDIT, 0);
    expect_narrow(out_text);
    cr_expect_str_eq(names_in(".", ""),
                     "error.txt out.txt tiny.json tiny_train_000000.bin tiny_val_000000.bin",
                     "nothing is written");
    expect_exit(AUDIT "|--out|deep/er|--set|loss_scale.init_scale=3000", 0);
    cr_expect_str_eq(names_in("deep/er", ""), "audit.json");
    struct json_file file = read_json("deep/er/audit.json");
    char scale[80];
    snprintf(scale, sizeof scale, "Loss scale for fp16: 2^%d is",
             (int)at(at(at(file.root, "formats"), "fp16"), "safe_scale")->valuedouble);
    expect_text(out_text, scale);
    expect_text(out_text, "3000, loss_scale.init_scale; the figures are at 2^12");
    cr_expect(cJSON_IsFalse(at(file.root, "loss_scale_of_run")));
    /* 10 tensors forward and 9 backward in each of 2 layers, 3 and 3 outside the layers. */
    cr_expect_eq(cJSON_GetArraySize(at(file.root, "tensors")), 2 * (10 + 9) + 3 + 3);
    cr_expect_eq(cJSON_GetArraySize(at(file.root, "parameters")), 4 + 2 * 12);
    cJSON_ArrayForEach(entry, at(file.root, "tensors")) expect_figures(entry);
    json_file_close(&file);
}

/* The audit of fp8 has its own files. */
Test(audit_program, files_of_fp8) {
    expect_exit(AUDIT "|--precision|fp8|--out|report", 0);
    struct json_file file = read_json("report/audit_fp8.json");
    cr_expect_eq(cJSON_GetArraySize(at(file.root, "operands")), 12, "four layers of three");
    json_file_close(&file);
    cr_expect_str_eq(names_in("report", ""), "audit_fp8.json");
    expect_narrow(out_text);
}

/* The printed block is a config that training accepts. */
Test(audit_program, the_block_is_a_config) {
    expect_exit(AUDIT "|--out|report", 0);
    struct json_file file = read_json("report/audit.json");
    const cJSON *configs = at(at(file.root, "advice"), "configs");
    static const char *const formats[] = {"bf16", "fp16"};
    for (int i = 0; i < 2; i++) {
        char label[32];
        snprintf(label, sizeof label, "\nConfig for %s\n\n", formats[i]);
        const char *begin = strstr(out_text, label);
        cr_assert_not_null(begin);
        begin += strlen(label);
        char *block = strndup(begin, (size_t)(strstr(begin, "\n}\n") + 3 - begin));
        cJSON *printed = cJSON_Parse(block);
        cr_expect(cJSON_Compare(printed, at(configs, formats[i]), true), "%s", block);
        cJSON_Delete(printed);
        write_file(i == 0 ? "bf16.json" : "fp16.json", block);
        free(block);
    }
    json_file_close(&file);
    expect_exit("--config|./bf16.json|--dry-run", 0);
    expect_exit("--config|./fp16.json|--dry-run", 0);
    expect_text(out_text, "fp16");
    cr_expect_str_eq(error_text, "", "no warning about a block without effect");
}

Test(audit_program, audits_a_run) {
    expect_exit("--config|tiny.json|--set|precision=fp16|--set|loss_scale.init_scale=4096", 0);
    const char *before = names_in("a/run/checkpoints", "");
    expect_exit(AUDIT "|--from|a/run", 0);
    expect_text(out_text, "weights     a/run/checkpoints/step-00000024");
    expect_text(out_text, "loss scale  4096, that of the fp16 run at this step");
    expect_text(out_text, "from step 25 on");
    cr_expect_null(strstr(out_text, "Adam's first step"));
    cr_expect_str_eq(names_in("a/run/checkpoints", ""), before);
    expect_exit(AUDIT "|--from|a/run/checkpoints/step-00000008|--repetitions|1", 0);
    expect_text(out_text, "1 micro-batch of 2 x 32 tokens from step 9 on");
    /* The run alone gives config and weights, of the newest checkpoint that is whole. */
    damage("a/run/checkpoints/step-00000024/model.safetensors");
    expect_exit("--audit|--from|a/run|--repetitions|1", 0);
    expect_text(out_text, "weights     a/run/checkpoints/step-00000016");
    const char *warning = strstr(error_text, "step-00000024");
    cr_assert_not_null(warning, "%s", error_text);
    cr_expect_null(strstr(strstr(warning, "\n"), "step-00000024/"), "twice: %s", error_text);
}

Test(audit_program, audits_named_precisions) {
    expect_exit(AUDIT "|--precision|bf16|--out|o", 0);
    struct json_file file = read_json("o/audit.json");
    cr_expect_null(json_member(at(file.root, "formats"), "fp16"));
    json_file_close(&file);
    cr_expect_null(strstr(out_text, "Loss scale"));
    cr_expect_null(strstr(out_text, "  room\n"));
    expect_exit(AUDIT "|--precision|fp32,fp16|--set|model.n_layer=1", 0);
    expect_text(out_text, "Config for fp16");
    cr_expect_null(strstr(out_text, "Config for bf16"));
}

Test(audit_program, stored_gradients_of_parameters_are_shown) {
    expect_exit(AUDIT "|--set|gradients.dtype=lower", 0);
    expect_text(out_text, "scaled zero");
    expect_narrow(out_text);
}

Test(audit_program, wrong_inputs) {
    expect_error(AUDIT "|--precision|fp32", 2, "nothing to compare");
    expect_error(AUDIT "|--from|nowhere", 1, "nowhere");
    expect_error(AUDIT "|--repetitions|100000", 2, "--repetitions");
    expect_error(AUDIT "|--set|data.train=none_*.bin", 1, "none_*.bin");
    expect_error(AUDIT "|--set|model.init_from=nowhere", 1, "nowhere");
    write_file("in_the_way", "");
    expect_error(AUDIT "|--out|in_the_way", 1, "in_the_way");
    cr_expect_str_eq(out_text, "", "found before the work");
    expect_exit("--config|tiny.json", 0);
    expect_error(AUDIT "|--from|a/run|--set|model.n_embd=64", 1, "n_embd");
    damage("a/run/checkpoints/step-00000024/model.safetensors");
    expect_error(AUDIT "|--from|a/run/checkpoints/step-00000024", 1, "model.safetensors");
}

Test(audit_program, a_signal_ends_it) {
    pid_t child = start("--audit|--config|tiny.json|--repetitions|900|--out|o");
    wait_until_caught(child, SIGINT, true);
    kill(child, SIGINT);
    int status = finish(child);
    cr_expect_eq(status, 130, "%s%s", out_text, error_text);
    expect_text(error_text, "stopped by Ctrl-C (SIGINT)");
    cr_expect_str_eq(names_in("o", ""), "", "no half of a report");
}

/* A run alone gives config and weights; SGD at a rate of 10 makes its loss diverge. */
Test(audit_program, a_diverged_run_by_its_folder) {
    expect_exit("--config|tiny.json|--set|optimizer.name=sgd|--set|optimizer.lr=10|--set|"
                "optimizer.min_lr=10|--set|train.steps=40|--set|optimizer.warmup_steps=0|--set|"
                "optimizer.momentum=0.9|--set|eval.every=0|--set|sample.every=0",
                1);
    expect_exit("--audit|--from|a/run|--repetitions|2", 0);
    expect_narrow(out_text);
    const char *diverged = strstr(out_text, "\ndiverged: The loss itself has diverged");
    cr_assert_not_null(diverged, "%s", out_text);
    cr_expect_lt(diverged, strstr(out_text, "Forward pass"));
    expect_text(diverged, "Largest weights: ");
    cr_expect_null(strstr(out_text, "Keep "), "%s", out_text);
    cr_expect_null(strstr(out_text, "Config for"), "%s", out_text);
}
