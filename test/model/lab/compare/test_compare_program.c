/* ./compare, or $COMPARE, as a program: reports that agree with each other, exit statuses, and a
 * bias planted into a real run. */
#include <ctype.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "data/base/files.h"
#include "model/lab/page/gnuplot.h"
#include "test/model/run/program_fixture.h"

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

static void expect_out(const char *part) {
    cr_expect_not_null(strstr(out_text, part), "\"%s\" is not in:\n%s", part, out_text);
}

static cJSON *read_json(const char *name) {
    size_t size;
    char *text = read_whole(name, &size);
    cJSON *root = cJSON_ParseWithLength(text, size);
    cr_assert_not_null(root, "%s is no JSON", name);
    free(text);
    return root;
}

/* The value at a path such as "groups.1.curve.percent". */
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

static void expect_80_columns(const char *text) {
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        size_t length = strcspn(line, "\n");
        cr_expect_leq(length, 80, "%zu columns: %.*s", length, (int)length, line);
        if (!line[length]) break;
    }
}

/* ---- a bias in a real run */

/* A copy of run `from` whose losses, those of validations too, are `percent` higher. */
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
    } planted[] = {{0, 0}, {0.4, 0}, {-0.4, 0}, {0.6, 1}, {-0.6, 1}, {1, 1}};
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
    expect_out("right: FAIL, training loss: +1.000 %");
    expect_out("Three or more seeds do.");
    expect_out("The configs are the same");
}

/* ---- reports */

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

/* Three seeds of three precisions with all that a report can have, in a place with spaces. */
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
    cr_expect_eq(number_at(bf16, "profile.operations.matmul"), 6);
    cr_expect_eq(number_at(fp16, "skipped.steps"), 9);
    cr_expect_eq(number_at(fp16, "loss_scale.last"), 1024);
    cr_expect_eq(cJSON_GetArraySize(at(fp16, "checks")), 9);
    cr_expect_str_eq(text_at(report, "config_differences.0.key"), "precision");
    cr_expect_str_eq(text_at(report, "config_differences.0.values.fp16"), "fp16");
    cJSON_Delete(report);
}

/* What JSON says to the last digit, the others say rounded. */
Test(compare_program, all_forms_agree) {
    char figure[40];
    make_nine(0.125);
    expect_exit(NINE "|--out|my report", 0);
    expect_80_columns(out_text);
    cJSON *report = read_json("my report/report.json");
    static const char *const files[] = {"my report/report.md", "my report/report.html"};
    static const char *const paths[] = {
        "groups.1.training_difference.percent", "groups.1.validation_difference.percent",
        "groups.2.training_difference.percent", "groups.2.curve.percent"};
    for (size_t i = 0; i < 4; i++) {
        snprintf(figure, sizeof figure, "%+.3f %%", number_at(report, paths[i]));
        expect_out(figure);
        for (size_t f = 0; f < 2; f++) {
            size_t size;
            char *text = read_whole(files[f], &size);
            cr_expect_not_null(strstr(text, figure), "%s lacks %s, %s", files[f], paths[i], figure);
            free(text);
        }
    }
    cJSON_Delete(report);
}

static int occurrences(const char *text, const char *part) {
    int count = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) count++;
    return count;
}

Test(compare_program, page_stands_alone) {
    size_t size;
    make_nine(0.125);
    expect_exit(NINE "|--out|my report|--made-by|<made> & \"by\"", 0);
    char *page = read_whole("my report/report.html", &size);
    static const char *const foreign[] = {"<script", "http://", "https://",
                                          "<made>",  " src=",   "@import"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        cr_expect_null(strstr(page, foreign[i]), "%s", foreign[i]);
    bool drawn = !gnuplot_problem();
    cr_expect_eq(occurrences(page, "<figure"), drawn ? 6 : 0);
    cr_expect_eq(occurrences(page, "no charts because gnuplot"), drawn ? 0 : 1);
    cr_expect_not_null(strstr(page, "&lt;made&gt; &amp; "));
    cr_expect_not_null(strstr(page, "&#39;my runs/fp32 0&#39;") ? page
                                                                : strstr(page, "'my runs/fp32 0'"));
    free(page);
}

/* ---- exit statuses */

Test(compare_program, fails_and_says_why) {
    make_nine(1);
    expect_exit(NINE, 1);
    expect_80_columns(out_text);
    expect_out("bf16: FAIL, training loss: +");
    expect_out("bf16: FAIL, validation loss: +");
    expect_out("The configs differ only in precision");
    cr_expect_null(strstr(out_text, "Three or more seeds"), "there are three");
    expect_exit(NINE "|--limit-loss|2", 0);
}

Test(compare_program, reference) {
    make_run((struct run_recipe){.name = "x", .tokens_per_s = 1000});
    make_run((struct run_recipe){.name = "y", .tokens_per_s = 4000, .bias = 0.25});
    expect_exit("x|y|--reference|y", 0);
    expect_out("y    reference");
    expect_out("-0.249 %");
    expect_out("0.25 x");
    expect_trouble("x|y|--reference|z", 1, "the groups are x, y");
}

Test(compare_program, a_reference_in_trouble_fails) {
    make_run((struct run_recipe){.name = "x", .steps = 50, .planned = 100});
    make_run((struct run_recipe){.name = "y", .steps = 100, .bias = 0.001});
    expect_exit("x|y", 1);
    expect_out("warning: x has done 50 of 100 steps");
    expect_out("x: FAIL, finished: 50 of 100 steps only");
    expect_exit("x|y|--partial", 0);
}

Test(compare_program, warns_of_other_trainings) {
    make_run((struct run_recipe){.name = "x", .more = ", \"data\": {\"train\": \"a\"}"});
    make_run((struct run_recipe){.name = "y", .more = ", \"data\": {\"train\": \"b\"}"});
    make_run((struct run_recipe){.name = "z", .seed = 4, .more = ", \"eval\": {\"batches\": 3}"});
    expect_exit("x|y", 0);
    expect_out("warning: data.train differs: these are different trainings");
    expect_out("data.train  \"a\"  \"b\"");
    run("x|z");
    expect_out("warning: z and x have no seed in common");
    expect_out("warning: eval.batches differs");
}

/* As three forms say it, and without a word such as nan or inf. */
Test(compare_program, norms_of_zero_fail) {
    static const char *const files[] = {"r/report.json", "r/report.md", "r/report.html"};
    make_run((struct run_recipe){.name = "x"});
    make_run((struct run_recipe){.name = "y", .precision = "fp16", .zeros_of_four = 4});
    expect_exit("x|y|--out|r", 1);
    expect_out("fp16: FAIL, gradient norms: median ratio 0.0000, 0 in 100 of 100 steps");
    cr_expect_null(strstr(out_text, "nan"));
    cr_expect_null(strstr(out_text, "Three or more seeds"), "no seeds are needed to see that");
    for (size_t i = 0; i < 3; i++) {
        size_t size;
        char *text = read_whole(files[i], &size);
        cr_expect(!strstr(text, "nan") && !strstr(text, "inf,"), "%s", files[i]);
        free(text);
    }
    cJSON *report = read_json("r/report.json");
    cr_expect_eq(number_at(report, "groups.1.gradient_norm.zero"), 100);
    cr_expect(cJSON_IsNull(at(report, "groups.1.gradient_norm.geometric_mean_ratio")));
    cJSON_Delete(report);
}

Test(compare_program, sixteen_bit_by_name_only) {
    const char *off = ", \"autocast\": {\"enabled\": false}";
    make_run((struct run_recipe){.name = "x", .more = off});
    make_run((struct run_recipe){.name = "y", .precision = "bf16", .more = off});
    expect_exit("x|y", 1);
    expect_80_columns(out_text);
    expect_out("warning: bf16: autocast.enabled is false, so it computed in fp32 everywhere");
    expect_out("bf16: FAIL, format");
    cr_expect_null(strstr(out_text, "fp32: autocast"), "there it means nothing");
    expect_exit("y|x", 1); /* nor may it be what others are held against */
}

/* What is compared are pairs, however many runs there are. */
Test(compare_program, seeds_without_partners) {
    make_nine(0.125);
    const char *five = "my runs/fp32 0|my runs/fp32 1|my runs/fp32 2|my runs/bf16 1|"
                       "my runs/fp16 0|my runs/fp16 1|--out|r";
    expect_exit(five, 0);
    expect_out("fp32, bf16, fp16: 100 steps, at least 1 seed, against fp32");
    expect_out("warning: fp32: 1 of its 3 runs have a seed that bf16 has too");
    expect_out("warning: fp32: 2 of its 3 runs have a seed that fp16 has too");
    cr_expect_null(strstr(out_text, "warning: bf16: 1 of"), "its one run has a partner");
    expect_out("8.98 scatters"); /* with 2 pairs, whatever the number of runs */
    size_t size;
    char *page = read_whole("r/report.html", &size);
    cr_expect_not_null(strstr(page, "100 steps, at least 1 seed, measured against fp32"));
    free(page);
    run("my runs/fp32 0|my runs/fp32 1|my runs/fp32 2|my runs/bf16 1|my runs/fp16 0");
    expect_out("fp32, bf16, fp16: 100 steps, 1 seed, against fp32");
    cr_expect_null(strstr(out_text, "catter"), "one pair has no noise");
    run("my runs/fp32 0|my runs/fp32 1|my runs/bf16 0|my runs/bf16 1|my runs/bf16 2");
    expect_out("warning: bf16: 2 of its 3 runs have a seed that fp32 has too");
    cr_expect_null(strstr(out_text, "warning: fp32: "));
}

Test(compare_program, noise_of_as_many_pairs_as_a_row_has) {
    make_nine(0.125);
    expect_exit(NINE, 0);
    expect_out("2.48 scatters (95 %, Student's t) and 1.63 noises. With");
    cr_expect_null(strstr(out_text, "with 3 seeds"), "all rows have as many");
    run("my runs/fp32 0|my runs/fp32 1|my runs/fp32 2|my runs/bf16 0|my runs/bf16 1|"
        "my runs/bf16 2|my runs/fp16 0|my runs/fp16 1|--out|r");
    size_t size;
    char *text = read_whole("r/report.md", &size);
    cr_expect_not_null(strstr(text, "the smaller of 8.98 scatters (95 %, Student's t) and 2.00 "
                                    "noises with 2 seeds, 2.48 scatters and 1.63 noises with 3 "
                                    "seeds. With so few"));
    free(text);
}

/* The title says what was compared, not how far the first run came. */
Test(compare_program, fewest_steps_in_the_title) {
    make_run((struct run_recipe){.name = "x", .steps = 100});
    make_run((struct run_recipe){.name = "y", .steps = 40, .planned = 100, .precision = "bf16"});
    make_run((struct run_recipe){.name = "z", .steps = 60, .planned = 100, .precision = "fp16"});
    expect_exit("x|y|--partial|--out|r", 0);
    expect_out("fp32, bf16: 40 steps, 1 seed");
    size_t size;
    char *page = read_whole("r/report.html", &size);
    cr_expect_not_null(strstr(page, "40 steps, 1 seed, measured against fp32"));
    free(page);
    expect_exit("x|z|y|--partial", 0);
    expect_out("fp32, fp16, bf16: at least 40 steps, 1 seed");
}

/* Nothing is read, compared or printed for a folder that cannot be. */
Test(compare_program, an_out_that_cannot_be_fails_at_once) {
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
    expect_trouble("x|y|--nothing", 2, "no such option");
    expect_trouble("x|y|--out", 2, "needs a value");
    expect_trouble("x|y|--partial=yes", 2, "takes no value");
    expect_trouble("x|y|--limit-loss|-1", 2, "--limit-loss: \"-1\"");
    expect_trouble("x|y|--limit-curve=2x", 2, "--limit-curve: \"2x\"");
    expect_trouble("x|=y", 2, "label is empty");
}

Test(compare_program, trouble) {
    make_run((struct run_recipe){.name = "x"});
    make_run((struct run_recipe){.name = "y", .seed = 2});
    expect_trouble("x|none", 1, "none: no config.json");
    expect_trouble("x|y", 1, "nothing to compare");
    write_file("occupied", "");
    expect_trouble("x|z=x|--out|occupied", 1, "occupied");
}

Test(compare_program, a_label_or_a_name_with_equals) {
    make_run((struct run_recipe){.name = "a=b"});
    make_run((struct run_recipe){.name = "b"});
    expect_exit("a=b|new=b", 0);
    expect_out("a=b, new: 100 steps, 1 seed, against a=b");
    expect_exit("x=1=a=b|y=2=b", 0);
    expect_out("x=1, y=2: 100 steps, 1 seed, against x=1");
    expect_trouble("b|c=d=none", 1, "compare: d=none: no config.json");
}

/* ---- variants of a precision */

#define LOWER  "bf16:gradients.dtype=lower"
#define LOWEST "bf16:gradients.dtype=lower:autocast.residual=lower"

static void make_variants(void) {
    static const char *const more[] = {NULL, ", \"gradients\": {\"dtype\": \"lower\"}",
                                       ", \"gradients\": {\"dtype\": \"lower\"}, "
                                       "\"autocast\": {\"residual\": \"lower\"}"};
    for (int i = 0; i < 6; i++) {
        char name[40];
        snprintf(name, sizeof name, "runs/%c=%d", "abc"[i / 2], i % 2);
        make_run((struct run_recipe){.name = name,
                                     .precision = i / 2 ? "bf16" : "fp32",
                                     .seed = i % 2,
                                     .bias = i / 2 == 2,
                                     .more = more[i / 2]});
    }
    put_text("runs/b=0/profile.json", "{\"step_ms\": 8.5, \"products_ms\": 4.25, "
                                      "\"operations\": {\"matmul\": 6}}");
}

#define VARIANTS                                                                \
    "fp32=runs/a=0|fp32=runs/a=1|" LOWER "=runs/b=0|" LOWER "=runs/b=1|" LOWEST \
    "=runs/c=0|" LOWEST "=runs/c=1"

/* In 80 columns keys lose their group, and names are broken, figures never. */
Test(compare_program, variants_on_a_terminal) {
    make_variants();
    expect_exit(VARIANTS, 1);
    expect_80_columns(out_text);
    expect_out("fp32, " LOWER ",\n  " LOWEST ": 100 steps, 2 seeds,\n  against fp32\n");
    expect_out("\nbf16:dtype=lower                     1000  1.00 x");
    expect_out("\nbf16:dtype=lower:residual=lower      1000  1.00 x");
    expect_out("\nbf16:dtype=lower  loss curve          2  +0.000 %    0.000");
    expect_out("\ndtype=lower:\nresidual=lower\n");
    expect_out("\n" LOWEST ": FAIL, training loss: +1.000\n    % (");
    expect_out("\ngradients.dtype    -       \"lower\"           \"lower\"");
    expect_out("\nmatmul            -            6.0 ms");
}

Test(compare_program, variants_in_reports) {
    static const char *const files[] = {"r/report.md", "r/report.html"};
    static const char *const parts[2][3] = {
        {"| " LOWER " ", "| pass ", "| " LOWEST " "},
        {"<th scope=\"row\">bf16:<wbr>gradients.dtype=lower</th>",
         "<span>bf16:<wbr>gradients.dtype=lower:<wbr>autocast.residual=lower</span>",
         "<th scope=\"col\" class=\"right\">bf16:<wbr>gradients.dtype=lower</th>"}};
    make_variants();
    expect_exit(VARIANTS "|--out|r", 1);
    for (size_t f = 0; f < 2; f++) {
        size_t size;
        char *text = read_whole(files[f], &size);
        for (int i = 0; i < 3; i++)
            cr_expect_not_null(strstr(text, parts[f][i]), "%s lacks %s", files[f], parts[f][i]);
        free(text);
    }
    cJSON *report = read_json("r/report.json");
    cr_expect_str_eq(text_at(report, "groups.1.label"), LOWER);
    cr_expect_str_eq(text_at(report, "groups.1.verdict"), "pass");
    cr_expect_str_eq(text_at(report, "groups.2.label"), LOWEST);
    cr_expect_str_eq(text_at(report, "groups.2.verdict"), "fail");
    cr_expect_eq(number_at(report, "groups.2.training_difference.pairs"), 2);
    cJSON_Delete(report);
}

/* Where the groups of keys are what tells two of them apart; and what is no key keeps its dots. */
Test(compare_program, labels_stay_whole_where_short_ones_are_alike) {
    make_run((struct run_recipe){.name = "x"});
    make_run((struct run_recipe){.name = "y"});
    expect_exit("a:b.every=2=x|a:c.every=2=y", 0);
    expect_out("\na:b.every=2  reference");
    expect_out("\na:c.every=2  pass");
    expect_exit("in 1.5:2.5=x|b.c=y", 0);
    expect_out("\nin 1.5:2.5  reference");
    expect_out("\nb.c         pass");
}

Test(compare_program, help) {
    expect_exit("-h", 0);
    expect_exit("--help", 0);
    expect_80_columns(out_text);
    expect_out("--limit-loss PERCENT");
}
