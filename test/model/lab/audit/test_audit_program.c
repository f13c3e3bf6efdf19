/* ./train --audit as a person uses it. */
#include "test/model/run/program_fixture.h"

#include <math.h>

#include <cjson/cJSON.h>

#include "data/base/json.h"
#include "model/lab/page/percent.h"

TestSuite(audit_program, .init = set_up, .fini = remove_folder);

#define AUDIT "--audit|--config|tiny.json|--repetitions|2"

static void expect_text(const char *text, const char *part) {
    cr_expect_not_null(strstr(text, part), "\"%s\" is not in: %s", part, text);
}

/* The output with its wrapped lines joined. */
static const char *unwrapped(void) {
    static char text[PROGRAM_OUTPUT_MAX];
    size_t used = 0;
    for (const char *c = out_text; *c; c++) {
        if (strncmp(c, "\n  ", 3) == 0) c += 2;
        text[used++] = *c;
    }
    text[used] = '\0';
    return text;
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

/* The row of the first table whose first cell this is, from the second cell on. */
static const char *row_of(const char *name) {
    static char begin[100];
    snprintf(begin, sizeof begin, "\n%s ", name);
    const char *row = strstr(out_text, begin);
    cr_assert_not_null(row, "no row %s in: %s", name, out_text);
    return row + strlen(begin);
}

static void expect_percent(const char **row, double share, const char *what) {
    char text[PERCENT_MAX], found[PERCENT_MAX] = "";
    percent_short(text, share);
    int used = 0;
    sscanf(*row, "%23s%n", found, &used);
    *row += used;
    cr_expect_str_eq(found, text, "%s", what);
}

/* The terminal's rows are the worst of the layers in the file. */
static void expect_agreement(const cJSON *root, const char *tensor) {
    double errors[2] = {0, 0}, zero = 0, room = INFINITY, printed;
    const cJSON *entry;
    int layers = 0;
    cJSON_ArrayForEach(entry, at(root, "tensors")) {
        if (strcmp(at(entry, "tensor")->valuestring, tensor) != 0) continue;
        layers++;
        errors[0] = fmax(errors[0], at(at(entry, "error"), "bf16")->valuedouble);
        errors[1] = fmax(errors[1], at(at(entry, "error"), "fp16")->valuedouble);
        bool gradient = cJSON_IsTrue(at(entry, "gradient"));
        const cJSON *scaled = gradient ? at(entry, "scaled") : at(entry, "unscaled");
        zero = fmax(zero, at(at(entry, "unscaled"), "zero")->valuedouble);
        room = fmin(room, at(scaled, "room")->valuedouble);
    }
    cr_expect_gt(layers, 0, "no %s in the file", tensor);
    const char *row = row_of(tensor);
    expect_percent(&row, errors[0], tensor);
    expect_percent(&row, errors[1], tensor);
    expect_percent(&row, zero, tensor);
    const char *end = row + strcspn(row, "\n");
    while (end[-1] != ' ') end--;
    cr_assert_eq(sscanf(end, "%lf", &printed), 1);
    cr_expect_float_eq(printed, room, 0.0501, "%s: room", tensor);
}

Test(audit_program, prints_tables_and_advice) {
    expect_exit(AUDIT, 0);
    expect_narrow(out_text);
    static const char *const parts[] = {
        "audit of   run",
        "weights    initial weights",
        "looks at   2 micro-batches of 2 x 32 tokens from step 1 on",
        "loss scale 65536",
        "\nforward ",
        "\nbackward ",
        "\ngradient of ",
        "\nattn.c_attn.weight",
        "\none more in float32 ",
        "\nFormat: ",
        "Loss scale for fp16: 2^",
        "Adam's first step",
        "\nfor bf16:\n{",
        "\nfor fp16:\n{"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) expect_text(unwrapped(), parts[i]);
    const char *table = strstr(out_text, "\nbackward ");
    cr_expect_null(strstr(table + 1, "\nbackward "), "the table is too wide for one block");
    cr_expect_str_eq(names_in(".", ""),
                     "error.txt out.txt tiny.json tiny_train_000000.bin "
                     "tiny_val_000000.bin",
                     "nothing is written");
}

Test(audit_program, the_file_agrees_with_the_terminal) {
    expect_exit(AUDIT "|--out|deep/er", 0);
    cr_expect_str_eq(names_in("deep/er", ""), "audit.html audit.json");
    struct json_file file = read_json("deep/er/audit.json");
    static const char *const tensors[] = {
        "qkv", "mlp_fc", "ln_f", "lm_head", "d(qkv)", "d(lm_head)", "d(mlp_projection)"};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        expect_agreement(file.root, tensors[i]);
    const cJSON *fp16 = at(at(file.root, "formats"), "fp16");
    char scale[80];
    snprintf(scale, sizeof scale, "Loss scale for fp16: 2^%d is", at(fp16, "safe_scale")->valueint);
    expect_text(out_text, scale);
    const cJSON *lost = at(at(file.root, "update"), "lost");
    char masters[120], bf16[PERCENT_MAX], fp16_lost[PERCENT_MAX];
    snprintf(masters, sizeof masters, "a bf16 master would lose %s, an fp16 one %s.",
             percent(bf16, at(lost, "bf16")->valuedouble),
             percent(fp16_lost, at(lost, "fp16")->valuedouble));
    expect_text(unwrapped(), masters);
    const char *row = row_of("(none)");
    expect_percent(&row, at(at(at(file.root, "formats"), "bf16"), "gradient_error")->valuedouble,
                   "all gradients in bf16");
    /* 11 tensors of each of 2 layers forward and 9 backward, 3 and 3 of the model. */
    cr_expect_eq(cJSON_GetArraySize(at(file.root, "tensors")), 2 * (10 + 9) + 3 + 3);
    cr_expect_eq(cJSON_GetArraySize(at(file.root, "parameters")), 4 + 2 * 12);
    const cJSON *tensor = cJSON_GetArrayItem(at(file.root, "tensors"), 5), *count;
    double values = at(tensor, "zeros")->valuedouble + at(tensor, "infinite")->valuedouble;
    cJSON_ArrayForEach(count, at(at(tensor, "exponents"), "counts")) values += count->valuedouble;
    cr_expect_eq(values, at(tensor, "values")->valuedouble, "every value is somewhere");
    json_file_close(&file);
}

Test(audit_program, the_page_stands_alone) {
    size_t size;
    expect_exit(AUDIT "|--out|report", 0);
    char *page = read_whole("report/audit.html", &size);
    static const char *const parts[] = {"Precision audit of run",
                                        "<svg",
                                        ">initial weights<",
                                        "2 micro-batches of 2 x 32 tokens from step 1 on<",
                                        ">65536, loss_scale.init_scale<",
                                        ">fp32 ",
                                        "zero in fp16",
                                        "layer 1 d(qkv)",
                                        "h.1.mlp.c_fc.weight",
                                        "Gradients of activations times",
                                        "</html>"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) expect_text(page, parts[i]);
    cr_expect_null(strstr(page, "<script"));
    cr_expect_null(strstr(page, "src="));
    free(page);
}

/* fp8 alone has files of its own. */
Test(audit_program, files_of_fp8) {
    size_t size;
    expect_exit(AUDIT "|--precision|fp8|--out|report", 0);
    struct json_file file = read_json("report/audit_fp8.json");
    cr_expect_eq(cJSON_GetArraySize(at(file.root, "operands")), 12, "four layers of three");
    json_file_close(&file);
    char *page = read_whole("report/audit_fp8.html", &size);
    expect_text(page, "Precision audit of run: fp8");
    expect_text(page, "</html>");
    free(page);
    cr_expect_neq(access("report/audit.json", F_OK), 0, "of 16 bit nothing was asked");
}

/* What is to be pasted is a config, and training takes it. */
Test(audit_program, the_block_is_a_config) {
    expect_exit(AUDIT "|--out|report", 0);
    struct json_file file = read_json("report/audit.json");
    const cJSON *configs = at(at(file.root, "advice"), "configs");
    static const char *const formats[] = {"bf16", "fp16"};
    for (int i = 0; i < 2; i++) {
        char label[32];
        snprintf(label, sizeof label, "\nfor %s:\n", formats[i]);
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

Test(audit_program, looks_at_a_run) {
    expect_exit("--config|tiny.json|--set|precision=fp16|--set|loss_scale.init_scale=4096", 0);
    const char *before = names_in("a/run/checkpoints", "");
    expect_exit(AUDIT "|--from|a/run", 0);
    expect_text(out_text, "weights    a/run/checkpoints/step-00000024");
    expect_text(out_text, "loss scale 4096, that of the fp16 run at this step");
    expect_text(out_text, "from step 25 on");
    cr_expect_null(strstr(unwrapped(), "Adam's first step"));
    cr_expect_str_eq(names_in("a/run/checkpoints", ""), before);
    expect_exit(AUDIT "|--from|a/run/checkpoints/step-00000008|--repetitions|1", 0);
    expect_text(out_text, "1 micro-batch of 2 x 32 tokens from step 9 on");
}

Test(audit_program, looks_at_some_precisions) {
    expect_exit(AUDIT "|--precision|bf16|--out|o", 0);
    struct json_file file = read_json("o/audit.json");
    cr_expect_null(json_member(at(file.root, "formats"), "fp16"));
    json_file_close(&file);
    cr_expect_null(strstr(out_text, "Loss scale"));
    cr_expect_null(strstr(out_text, "room"));
    expect_exit(AUDIT "|--precision|fp32,fp16|--set|model.n_layer=1", 0);
    expect_text(out_text, "for fp16:");
    cr_expect_null(strstr(out_text, "for bf16:"));
}

Test(audit_program, stored_gradients_of_parameters_are_shown) {
    expect_exit(AUDIT "|--set|gradients.dtype=lower", 0);
    expect_text(out_text, "zero x2^16");
    expect_narrow(out_text);
}

/* Between 2^11 and 2^12: the larger, so that room is never overstated. */
Test(audit_program, a_scale_that_is_no_power_of_two) {
    expect_exit(AUDIT "|--set|loss_scale.init_scale=3000|--out|o", 0);
    expect_text(unwrapped(), "loss scale 3000, loss_scale.init_scale; the figures are at 2^12");
    expect_text(unwrapped(), "room at 2^12");
    struct json_file file = read_json("o/audit.json");
    const cJSON *entry;
    cJSON_ArrayForEach(entry, at(file.root, "tensors")) {
        if (!cJSON_IsTrue(at(entry, "gradient"))) continue;
        double unscaled = at(at(entry, "unscaled"), "room")->valuedouble;
        cr_expect_float_eq(at(at(entry, "scaled"), "room")->valuedouble, unscaled - 12, 1e-9);
    }
    cr_expect(cJSON_IsFalse(at(file.root, "loss_scale_of_run")));
    json_file_close(&file);
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
    usleep(300 * 1000);
    kill(child, SIGINT);
    int status = finish(child);
    cr_expect_eq(status, 130, "%s%s", out_text, error_text);
    expect_text(error_text, "stopped by Ctrl-C (SIGINT)");
    cr_expect_str_eq(names_in("o", ""), "", "no half of a report");
}
