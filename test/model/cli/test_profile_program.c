/* ./train --profile: its output and profile.json. */
#include "test/model/cli/program_fixture.h"

#include <math.h>

#include <cjson/cJSON.h>

#include "data/util/json.h"

TestSuite(profile_program, .init = set_up, .fini = remove_folder);

static double number_of(const struct cJSON *object, const char *key) {
    const struct cJSON *member = json_member(object, key);
    cr_assert(cJSON_IsNumber(member), "%s", key);
    return member->valuedouble;
}

static void expect_near(double value, double expected, const char *what) {
    cr_expect_lt(fabs(value - expected), 1e-9 * expected, "%s is %.17g, not %.17g", what, value,
                 expected);
}

Test(profile_program, prints_the_parts_and_writes_them) {
    struct json_file file;
    expect_exit("--profile|--config|tiny.json|--repetitions|2|--out|new/p|--set|precision=bf16", 0);
    cr_expect_not_null(strstr(out_text, "a step of run in bf16, medians of 2:"), "%s", out_text);
    cr_assert_eq(json_file_open(&file, in_folder("new/p/profile.json"), &error), 0, "%s",
                 error.text);
    cr_expect_str_eq(json_member(file.root, "precision")->valuestring, "bf16");
    cr_expect_eq(number_of(file.root, "repetitions"), 2);
    cr_expect_eq(number_of(file.root, "tokens_per_step"), 2 * 2 * 32);
    double step = number_of(file.root, "step_ms"), products = number_of(file.root, "products_ms");
    expect_near(number_of(file.root, "ratio"), step / products, "ratio");
    expect_near(number_of(file.root, "tokens_per_s"), 1e3 * 2 * 2 * 32 / step, "tokens/s");
    const struct cJSON *parts = json_member(file.root, "operations");
    cr_expect_gt(number_of(parts, "matmul"), 0);
    cr_expect_null(json_member(parts, "attention_decode"), "what is not called is not named");
    json_file_close(&file);
    cr_expect_not(exists("a"), "a profile makes no run");
}

Test(profile_program, wrong_use_is_explained) {
    expect_error("--profile", 2, "--config");
    expect_error("--profile|--config|tiny.json|--repetitions|0", 2, "from 1 to");
    expect_error("--config|tiny.json|--out|x", 2, "--audit and --profile");
    expect_error("--profile|--config|tiny.json|--resume", 2, "--resume goes with training");
    expect_error("--profile|--config|tiny.json|--precision|bf16", 2, "--agreement and --audit");
    expect_error("--profile|--dry-run|--config|tiny.json", 2, "exclude each other");
    expect_error("--profile|--config|tiny.json|--out|tiny.json/x|--repetitions|1", 1,
                 "a file stands there");
}

Test(profile_program, a_folder_that_cannot_be_written_fails_before_the_measurement) {
    make_locked_folder("locked");
    expect_error("--profile|--config|tiny.json|--out|locked|--repetitions|1", 1,
                 "cannot write to the directory locked: Permission denied");
    cr_expect_str_eq(out_text, "");
}
