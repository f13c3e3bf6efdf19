/* The program ./compare, or $COMPARE: its text, its figures, its exit statuses, and a bias
 * added to a real run. */
#include <ctype.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "data/util/files.h"
#include "test/model/cli/program_fixture.h"

#include "test/model/lab/compare/run_fixture.h"

static char trainer[FILE_PATH_MAX], comparer[FILE_PATH_MAX];

static void set_up_both(void) {
    set_up();
    snprintf(trainer, sizeof trainer, "%s", program);
    const char *name = getenv("COMPARE") ? getenv("COMPARE") : "./compare";
    cr_assert_not_null(realpath(name, comparer), "no program %s: build it or set COMPARE", name);
    snprintf(program, sizeof program, "%s", comparer);
}

TestSuite(compare_program, .init = set_up_both, .fini = remove_folder);

static void expect_trouble(const char *arguments, int status, const char *part) {
    expect_exit(arguments, status);
    cr_expect_not_null(strstr(error_text, "compare: "), "%s: says nothing", arguments);
    cr_expect_not_null(strstr(error_text, part), "%s: \"%s\" is not in: %s", arguments, part,
                       error_text);
}

static cJSON *read_json(const char *name) {
    size_t size;
    char *text = read_whole(name, &size);
    cJSON *root = cJSON_ParseWithLength(text, size);
    cr_assert_not_null(root, "%s is no JSON", name);
    free(text);
    return root;
}

/* Returns the value at a path such as "groups.1.curve.percent". */
static const cJSON *at(const cJSON *item, const char *path) {
    char part[60];
    while (*path) {
        size_t length = strcspn(path, ".");
        snprintf(part, sizeof part, "%.*s", (int)length, path);
        item = isdigit((unsigned char)part[0]) ? cJSON_GetArrayItem(item, atoi(part))
                                               : cJSON_GetObjectItemCaseSensitive(item, part);
        cr_assert_not_null(item, "no %s", path);
        path += length + (path[length] == '.');
    }
    return item;
}

static double number_at(const cJSON *root, const char *path) {
    const cJSON *item = at(root, path);
    cr_assert(cJSON_IsNumber(item), "%s is no number", path);
    return item->valuedouble;
}

static const char *text_at(const cJSON *root, const char *path) {
    const cJSON *item = at(root, path);
    cr_assert(cJSON_IsString(item), "%s is no text", path);
    return item->valuestring;
}

/* ---- a bias in a real run */

/* Copies run `from` with all losses, including validations, `percent` higher. */
static void copy_biased(const char *from, const char *to, double percent) {
    char name[200];
    size_t size;
    cr_assert_eq(directory_create(in_folder("%s", to), &error), 0, "%s", error.text);
    snprintf(name, sizeof name, "%s/config.json", from);
    char *config = read_whole(name, &size);
    snprintf(name, sizeof name, "%s/config.json", to);
    write_file(name, config);
    free(config);
    snprintf(name, sizeof name, "%s/metrics.jsonl", from);
    char *text = read_whole(name, &size), *rest = text, *line;
    snprintf(name, sizeof name, "%s/metrics.jsonl", to);
    FILE *out = fopen(in_folder("%s", name), "w");
    cr_assert_not_null(out);
    while ((line = strsep(&rest, "\n")) && *line) {
        char *loss = strstr(line, "loss\": ") + strlen("loss\": "), *end;
        double value = strtod(loss, &end) * (1 + percent / 100);
        fprintf(out, "%.*s%.12g%s\n", (int)(loss - line), line, value, end);
    }
    cr_assert_eq(fclose(out), 0);
    free(text);
}

Test(compare_program, a_bias_planted_into_a_real_run) {
    snprintf(program, sizeof program, "%s", trainer);
    expect_exit("--config|tiny.json", 0);
    snprintf(program, sizeof program, "%s", comparer);
    static const struct {
        double percent;
        int status;
    } planted[] = {{0, 0}, {0.4, 0}, {-0.4, 0}, {0.6, 1}, {-0.6, 0}, {1, 1}};
    for (size_t i = 0; i < sizeof planted / sizeof *planted; i++) {
        copy_biased("a/run", "a/biased", planted[i].percent);
        expect_exit("a/run|right=a/biased|--out|r", planted[i].status);
        cJSON *report = read_json("r/report.json");
        expect_close(number_at(report, "groups.1.training_difference.percent"), planted[i].percent,
                     1e-6, "training loss");
        expect_close(number_at(report, "groups.1.validation_difference.percent"),
                     planted[i].percent, 1e-6, "validation loss");
        cr_expect_str_eq(text_at(report, "groups.1.verdict"), planted[i].status ? "fail" : "pass");
        cr_expect_eq(cJSON_IsTrue(at(report, "pass")), planted[i].status == 0);
        cJSON_Delete(report);
    }
}

/* ---- figures */

Test(compare_program, with_itself) {
    make_run((struct run_recipe){.name = "x", .eval_every = 20});
    expect_exit("x|same=x|--out|r", 0);
    cJSON *report = read_json("r/report.json");
    static const char *const zeros[] = {"training_difference.percent",
                                        "validation_difference.percent", "curve.percent",
                                        "gradient_norm.percent", "memory_saving_percent"};
    static const char *const ones[] = {"gradient_norm.correlation",
                                       "gradient_norm.smoothed_correlation",
                                       "gradient_norm.geometric_mean_ratio", "speed_up"};
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++)
        cr_expect_eq(number_at(at(report, "groups.1"), zeros[i]), 0, "%s", zeros[i]);
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        expect_close(number_at(at(report, "groups.1"), ones[i]), 1, 1e-12, ones[i]);
    cJSON_Delete(report);
}

/* Three seeds of three precisions that fill all parts of a report, in a directory with spaces. */
static void make_nine(double bias) {
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    for (int i = 0; i < 9; i++) {
        char name[40];
        struct run_recipe recipe = {.name = name,
                                    .precision = precisions[i / 3],
                                    .seed = i % 3,
                                    .eval_every = 20,
                                    .bias = i / 3 == 1 ? bias : 0,
                                    .shaken = i / 3 ? 0.01 : 0,
                                    .norm_shaken = i / 3 ? 0.01 : 0,
                                    .tokens_per_s = 1000 * (1 + i / 3),
                                    .memory_bytes = 4e6 - 1e6 * (i / 3)};
        if (i / 3 == 2) {
            recipe.scale = 1024;
            recipe.skipped_from = 1;
            recipe.skipped_count = 3;
            recipe.more = ", \"loss_scale\": {\"init_scale\": 1024}";
        }
        snprintf(name, sizeof name, "my runs/%s %d", precisions[i / 3], i % 3);
        make_run(recipe);
    }
    put_text("my runs/bf16 0/profile.json", "{\"step_ms\": 8.5, \"products_ms\": 4.25, "
                                            "\"operations\": {\"matmul\": 6, \"clear\": 0.01}}");
    put_text("my runs/fp16 0/profile.json", "{\"operations\": {\"dequantize\": 1.5}}");
}

#define NINE                                                                              \
    "my runs/fp32 0|my runs/fp32 1|my runs/fp32 2|my runs/bf16 0|my runs/bf16 1|my runs/" \
    "bf16 2|my runs/fp16 0|my runs/fp16 1|my runs/fp16 2"

Test(compare_program, json_holds_every_figure) {
    make_nine(0.125);
    expect_exit(NINE "|--out|my report|--made-by|the script|--limit-loss=0.75", 0);
    cJSON *report = read_json("my report/report.json");
    cr_expect_str_eq(text_at(report, "reference"), "fp32");
    cr_expect_str_eq(text_at(report, "made_by"), "the script");
    cr_expect_eq(number_at(report, "limits.loss_percent"), 0.75);
    const cJSON *bf16 = at(report, "groups.1"), *fp16 = at(report, "groups.2");
    cr_expect_str_eq(text_at(bf16, "label"), "bf16");
    cr_expect_str_eq(text_at(bf16, "runs.2.path"), "my runs/bf16 2");
    cr_expect_eq(number_at(bf16, "runs.2.seed"), 2);
    cr_expect_eq(number_at(bf16, "steps"), 100);
    expect_close(number_at(bf16, "training_difference.percent"), 0.125, 0.02, "training");
    cr_expect_eq(number_at(bf16, "training_difference.pairs"), 3);
    cr_expect(cJSON_IsTrue(at(bf16, "training_difference.real")));
    cr_expect(cJSON_IsNull(at(bf16, "loss_scale")));
    cr_expect_eq(number_at(bf16, "speed_up"), 2);
    cr_expect_eq(number_at(fp16, "memory_saving_percent"), 50);
    cr_expect_eq(number_at(bf16, "equal_loss.tokens.pairs"), 3);
    cr_expect_gt(number_at(bf16, "equal_loss.tokens.percent"), 0);
    cr_expect_lt(number_at(bf16, "equal_loss.speed_up"), 2);
    cr_expect(strstr(text_at(bf16, "equal_loss.text"), "100.0 % more tokens/s, "));
    cr_expect(cJSON_IsNull(at(report, "groups.0.equal_loss")));
    cr_expect_eq(number_at(bf16, "profile.operations.matmul"), 6);
    cr_expect_eq(number_at(fp16, "skipped.steps"), 9);
    cr_expect_eq(number_at(fp16, "loss_scale.last"), 1024);
    cr_expect_eq(cJSON_GetArraySize(at(fp16, "checks")), 9);
    cr_expect_str_eq(text_at(report, "config_differences.0.key"), "precision");
    cr_expect_str_eq(text_at(report, "config_differences.0.values.fp16"), "fp16");
    cJSON_Delete(report);
}

Test(compare_program, other_rates_are_ranked) {
    make_run((struct run_recipe){.name = "a", .eval_every = 20});
    make_run((struct run_recipe){.name = "b", .eval_every = 20, .lr = 0.01, .bias = 4});
    make_run((struct run_recipe){
        .name = "c", .eval_every = 20, .lr = 0.002, .bias = -4, .norm_factor = 1.2});
    expect_exit("a|b|c|--out|out", 0);
    cr_expect_not_null(strstr(out_text, "b: rank 3 of 3: training loss +4.0"), "%s", out_text);
    cr_expect_not_null(strstr(out_text, "c: rank 1 of 3: training loss -4.0"), "%s", out_text);
    cr_expect_null(strstr(out_text, "FAIL"), "%s", out_text);
    cJSON *root = read_json("out/report.json");
    cr_expect_eq(number_at(root, "groups.0.rank"), 2);
    cr_expect_eq(number_at(root, "groups.1.rank"), 3);
    cr_expect_eq(number_at(root, "groups.2.rank"), 1);
    cJSON_Delete(root);
}

/* The scale of the first run: halved in two steps, lost in one, doubled once. */
Test(compare_program, path_of_the_loss_scale) {
    static const struct {
        const char *path;
        double value;
    } expected[] = {
        {"first", 65536}, {"last", 32768}, {"smallest", 16384}, {"largest", 65536}, {"changes", 3}};
    make_run((struct run_recipe){.name = "x"});
    make_run((struct run_recipe){.name = "y", .precision = "fp16"});
    FILE *metrics = open_in_folder("y/metrics.jsonl", "w");
    for (int i = 0; i < 100; i++) {
        int scale = i < 2 ? 65536 >> i : i < 60 ? 16384 : 32768;
        fprintf(metrics, "{\"step\": %d, \"loss\": 1, \"loss_scale\": ", i + 1);
        fprintf(metrics, i == 40 ? "null}\n" : "%d}\n", scale);
    }
    cr_assert_eq(fclose(metrics), 0);
    expect_exit("x|y|--out|r", 1);
    cJSON *report = read_json("r/report.json");
    const cJSON *scale = at(report, "groups.1.loss_scale");
    cr_expect(cJSON_IsNull(at(report, "groups.0.loss_scale")));
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        cr_expect_eq(number_at(scale, expected[i].path), expected[i].value, "%s", expected[i].path);
    cJSON_Delete(report);
}

/* Missing figures become null, never a word such as nan. */
Test(compare_program, norms_of_zero_in_json) {
    make_run((struct run_recipe){.name = "x"});
    make_run((struct run_recipe){.name = "y", .precision = "fp16", .zeros_of_four = 4});
    expect_exit("x|y|--out|r", 1);
    cJSON *report = read_json("r/report.json");
    cr_expect_eq(number_at(report, "groups.1.gradient_norm.zero"), 100);
    cr_expect(cJSON_IsNull(at(report, "groups.1.gradient_norm.geometric_mean_ratio")));
    cJSON_Delete(report);
}

/* ---- text */

static void make_others(void) {
    const char *off = ", \"autocast\": {\"enabled\": false}";
    make_run((struct run_recipe){.name = "x", .more = ", \"data\": {\"train\": \"a\"}"});
    make_run((struct run_recipe){
        .name = "y", .tokens_per_s = 4000, .bias = 0.25, .more = ", \"data\": {\"train\": \"b\"}"});
    make_run((struct run_recipe){.name = "z", .seed = 4, .more = ", \"eval\": {\"batches\": 3}"});
    make_run((struct run_recipe){.name = "40", .steps = 40, .planned = 100, .precision = "bf16"});
    make_run((struct run_recipe){.name = "60", .steps = 60, .planned = 100, .precision = "fp16"});
    make_run((struct run_recipe){.name = "zeros", .precision = "fp16", .zeros_of_four = 4});
    make_run((struct run_recipe){.name = "off", .more = off});
    make_run((struct run_recipe){.name = "by name", .precision = "bf16", .more = off});
    make_run((struct run_recipe){.name = "a=b"});
}

/* Checks the width of all lines of the output, and puts one space for each of its gaps. */
static void squeeze(void) {
    char *to = out_text;
    for (const char *line = out_text; *line; line += strcspn(line, "\n") + 1)
        cr_expect_leq(strcspn(line, "\n"), 80u, "%.90s", line);
    for (const char *at = out_text; *at; at++)
        if (!isspace((unsigned char)*at)) *to++ = *at;
        else if (to > out_text && to[-1] != ' ') *to++ = ' ';
    *to = 0;
}

/* A row of each table, each verdict and each warning. */
Test(compare_program, text) {
    static const struct {
        const char *arguments;
        int status;
        const char *parts[14];
    } cases[] = {
        {NINE,
         1,
         {"fp32, bf16, fp16: 100 steps, 3 seeds, against fp32 The configs differ only in precision",
          "bf16 fail 2.1733 +1.001 % 2.1382 +1.000 % +1.004 %",
          "the mean of the last 10 steps; the curve is that of means over 10 steps, where it is "
          "farthest from the reference after step 10.",
          "bf16: FAIL, validation loss: +1.000 % (2.1382, reference 2.1170) at step 100, real: "
          "seeds give or take 0.0031 %; limit: the last one is at most 0.5 % above the reference; "
          "8",
          "fp16: pass: training loss +0.001 %, validation loss +0.000 %, 3.00 times as fast, 50.0 "
          "% less memory",
          "bf16 1.0005 0.9999 0.9997 0.9996", "fp16 9 3.00% 2^10 2^10 2^10 2^10 0",
          "bf16 2000 2.00 x 1.92 x +4.4 % 2.9 MiB 25.0 % 2000 2000",
          "bf16: 100.0 % more tokens/s, 91.6 % (+-0.1) faster at equal loss (2.1382), which takes",
          "matmul - 6.0 ms - dequantize - - 1.5 ms whole step - 8.5 ms - matmuls alone - 4.2 ms -",
          "bf16 training loss 3 +1.001 % 0.001 1.044 0.002 real",
          "fp16 speed at equal loss 3 +199.998 % 0.015 - 0.038 real"}},
        {"x|y|--reference|y",
         0,
         {"x, y: 100 steps, 1 seed, against y", "data.train \"a\" \"b\"",
          "warning: data.train differs: these are different trainings, whose losses need not"}},
        {"x|y|--limit-loss|0.1",
         1,
         {"y: FAIL, training loss: +0.250 % (2.1668, reference 2.1614); limit: the final one is "
          "at most 0.1 % above the reference",
          "One seed does not tell such a difference from noise"}},
        {"x|z",
         1,
         {"eval.batches - 3", "warning: eval.batches differs: validation losses may be of other",
          "warning: z and x have no seed in common"}},
        {"off|zeros",
         1,
         {"fp16: FAIL, gradient norms: median ratio 0.0000, 0 in 100 of 100 steps"}},
        {"off|by name", 1, {"bf16: FAIL, format: fp32 everywhere, for autocast.enabled is false"}},
        {"off|40|60",
         1,
         {"fp32, bf16, fp16: at least 40 steps, 1 seed, against fp32",
          "warning: 40 has done 40 of 100 steps warning: 60 has done 60 of", "after step 4."}},
        {"off|60|40|--partial", 0, {"fp32, fp16, bf16: at least 40 steps"}},
        {"a=b|new=off", 0, {"a=b, new: 100 steps, 1 seed, against a=b"}},
        {"1=2=a=b|y=2=off", 0, {"1=2, y=2: 100 steps, 1 seed, against 1=2"}},
        {"a:b.every=2=a=b|a:c.every=2=off", 0, {"autocast.enabled - false"}},
        {"my runs/fp32 0|my runs/fp32 1|my runs/bf16 0|my runs/bf16 1|my runs/bf16 2",
         1,
         {"warning: bf16: 2 of its 3 runs have a seed that fp32 has too; the others do not count"}},
    };
    make_nine(1);
    make_others();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_exit(cases[i].arguments, cases[i].status);
        squeeze();
        for (int k = 0; cases[i].parts[k]; k++)
            cr_expect_not_null(strstr(out_text, cases[i].parts[k]), "no \"%s\" in: %s",
                               cases[i].parts[k], out_text);
    }
}

/* ---- errors */

/* An output directory that cannot be created fails before any run is read or printed. */
Test(compare_program, an_impossible_out_fails_at_once) {
    write_file("occupied", "");
    make_run((struct run_recipe){.name = "x"});
    make_run((struct run_recipe){.name = "y"});
    expect_trouble("x|y|--out|occupied/r", 1, "occupied");
    cr_expect_str_eq(out_text, "");
    expect_trouble("none|y|--out|occupied", 1, "occupied");
}

Test(compare_program, wrong_usage) {
    make_run((struct run_recipe){.name = "x"});
    expect_trouble("", 2, "two runs");
    expect_trouble("x", 2, "two runs");
    expect_trouble("x|y|--nothing", 2, "unknown option --nothing\n");
    expect_trouble("x|y|--referense=x", 2,
                   "unknown option --referense=x; did you mean --reference?");
    expect_trouble("x|y|--out", 2, "needs a value");
    expect_trouble("x|y|--out|--partial", 2, "--out needs a value: --out DIR");
    expect_trouble("x|y|--partial=yes", 2, "takes no value");
    expect_trouble("x|y|--limit-loss|-1", 2, "--limit-loss: \"-1\"");
    expect_trouble("x|y|--limit-curve=2x", 2, "--limit-curve: \"2x\"");
    expect_trouble("x|=y", 2, "label is empty");
}

Test(compare_program, errors) {
    make_run((struct run_recipe){.name = "x"});
    make_run((struct run_recipe){.name = "y", .seed = 2});
    expect_trouble("x|none", 1, "none: no config.json");
    expect_trouble("x|y", 1, "nothing to compare");
    expect_trouble("x|z=x|--reference|w", 1, "the groups are x, z");
    expect_trouble("x|c=d=none", 1, "compare: d=none: no config.json");
    write_file("occupied", "");
    expect_trouble("x|z=x|--out|occupied", 1, "occupied");
}
