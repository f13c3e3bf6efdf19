/* Grouping of runs, labels of groups, and differences between their configs. */
#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "model/lab/compare/runs.h"
#include "test/model/lab/compare/run_fixture.h"

TestSuite(run_groups, .init = make_folder, .fini = remove_folder);

enum { RUNS_MAX = 12 };

static struct run_record runs[RUNS_MAX];
static char *labels[RUNS_MAX];
static int count;
static struct run_group *groups;

static void add(struct run_recipe recipe, const char *label) {
    char name[40];
    snprintf(name, sizeof name, "%s", recipe.name ? recipe.name : "");
    if (!recipe.name) {
        snprintf(name, sizeof name, "run%d", count);
        recipe.name = name;
    }
    recipe.steps = 3;
    labels[count] = label ? strdup(label) : NULL;
    runs[count++] = made(recipe);
}

static void group_them(void) {
    cr_assert_eq(run_groups_make(&groups, runs, labels, count, &error), 0, "%s", error.text);
}

static void finish(void) {
    run_groups_free(groups);
    for (int i = 0; i < count; i++) {
        run_record_close(&runs[i]);
        free(labels[i]);
    }
}

static void expect_group(int index, const char *label, int size) {
    cr_assert_gt(arrlen(groups), index);
    cr_expect_str_eq(groups[index].label, label);
    cr_expect_eq(arrlen(groups[index].runs), size, "%s has %d runs", label,
                 (int)arrlen(groups[index].runs));
}

Test(run_groups, by_precision) {
    add((struct run_recipe){.precision = "fp32", .seed = 2}, NULL);
    add((struct run_recipe){.precision = "bf16", .seed = 2}, NULL);
    add((struct run_recipe){.precision = "fp32", .seed = 1}, NULL);
    add((struct run_recipe){.precision = "bf16", .seed = 1}, NULL);
    group_them();
    cr_expect_eq(arrlen(groups), 2);
    expect_group(0, "fp32", 2);
    expect_group(1, "bf16", 2);
    cr_expect(groups[0].runs[0]->seed == 1 && groups[0].runs[1]->seed == 2, "seeds ascend");
    finish();
}

Test(run_groups, the_same_seed_again_is_another_group) {
    add((struct run_recipe){.name = "before", .seed = 1}, NULL);
    add((struct run_recipe){.name = "before-seed2", .seed = 2}, NULL);
    add((struct run_recipe){.name = "after", .seed = 1}, NULL);
    add((struct run_recipe){.name = "after-seed2", .seed = 2}, NULL);
    group_them();
    expect_group(0, "before", 2);
    expect_group(1, "after", 2);
    finish();
}

Test(run_groups, names_if_precisions_are_equal) {
    add((struct run_recipe){.name = "a", .precision = "bf16"}, NULL);
    add((struct run_recipe){.name = "b-seed12", .precision = "fp32"}, NULL);
    add((struct run_recipe){.name = "c-seed", .precision = "fp32"}, NULL);
    group_them();
    expect_group(0, "a", 1);
    expect_group(1, "b", 1);
    expect_group(2, "c-seed", 1);
    finish();
}

Test(run_groups, equal_names_are_numbered) {
    make_run((struct run_recipe){.name = "x"});
    for (count = 0; count < 3; count++) runs[count] = read_run(in_folder("x"));
    group_them();
    expect_group(0, "x", 1);
    expect_group(1, "x (2)", 1);
    expect_group(2, "x (3)", 1);
    finish();
}

Test(run_groups, any_setting_but_a_few_makes_another_group) {
    static const char *const without[] = {", \"log\": {\"every\": 3}",
                                          ", \"sample\": {\"every\": 3}",
                                          ", \"checkpoint\": {\"every\": 3}"};
    static const char *const with[] = {", \"threads\": 3", ", \"eval\": {\"every\": 3}",
                                       ", \"autocast\": {\"float32\": [\"qkv\"]}",
                                       ", \"model\": {\"n_layer\": 3}"};
    add((struct run_recipe){.seed = 1}, NULL);
    for (int i = 0; i < 3; i++) add((struct run_recipe){.seed = 2 + i, .more = without[i]}, NULL);
    for (int i = 0; i < 4; i++) add((struct run_recipe){.seed = 10 + i, .more = with[i]}, NULL);
    group_them();
    cr_expect_eq(arrlen(groups), 5);
    cr_expect_eq(arrlen(groups[0].runs), 4);
    finish();
}

Test(run_groups, labels) {
    add((struct run_recipe){.precision = "fp32", .seed = 1}, "old");
    add((struct run_recipe){.precision = "fp32", .seed = 2}, "new one");
    add((struct run_recipe){.precision = "fp32", .seed = 3}, "old");
    add((struct run_recipe){.precision = "bf16", .seed = 4}, NULL);
    group_them();
    expect_group(0, "old", 2);
    expect_group(1, "new one", 1);
    expect_group(2, "run3", 1);
    finish();
}

Test(run_groups, invalid_labels) {
    add((struct run_recipe){.seed = 1}, "one");
    add((struct run_recipe){.seed = 2, .more = ", \"threads\": 3"}, "one");
    cr_expect_eq(run_groups_make(&groups, runs, labels, count, &error), -1);
    expect_said("threads");
    run_groups_free(groups);
    runs[1].seed = 1;
    cr_expect_eq(run_groups_make(&groups, runs, labels, count, &error), -1);
    expect_said("seed 1");
    finish();
}

Test(run_groups, too_many) {
    for (int i = 0; i <= RUN_GROUPS_MAX; i++) add((struct run_recipe){.seed = 1}, NULL);
    cr_expect_eq(run_groups_make(&groups, runs, labels, count, &error), -1);
    expect_said("at most 8");
    finish();
}

/* Expects an item with the JSON values of both groups. */
static void expect_difference(const cJSON *differences, int index, const char *key,
                              const char *weight, const char *first, const char *second) {
    const cJSON *item = cJSON_GetArrayItem(differences, index);
    const cJSON *values = cJSON_GetObjectItem(item, "values");
    cr_assert_not_null(values, "%s is no difference", key);
    cr_expect_str_eq(cJSON_GetObjectItem(item, "key")->valuestring, key);
    cr_expect_str_eq(cJSON_GetObjectItem(item, "weight")->valuestring, weight, "%s", key);
    for (int i = 0; i < 2; i++) {
        char *text = cJSON_PrintUnformatted(cJSON_GetArrayItem(values, i));
        cr_expect_str_eq(text, i ? second : first);
        free(text);
    }
}

Test(run_groups, differences) {
    add((struct run_recipe){.precision = "fp32",
                            .more = ", \"threads\": 1, \"data\": {\"train\": \"a\"}, "
                                    "\"log\": {\"every\": 1}, \"eval\": {\"batches\": 2}"},
        NULL);
    add((struct run_recipe){.precision = "fp16",
                            .planned = 50,
                            .more = ", \"threads\": 2, \"data\": {\"train\": \"b c\"}, "
                                    "\"log\": {\"every\": 2}, \"eval\": {\"batches\": 3}, "
                                    "\"loss_scale\": {\"init_scale\": 8}, "
                                    "\"autocast\": {\"float32\": [\"qkv\"]}"},
        NULL);
    group_them();
    cJSON *found = config_differences(groups);
    cr_expect_eq(cJSON_GetArraySize(found), 6);
    expect_difference(found, 0, "precision", "expected", "\"fp32\"", "\"fp16\"");
    expect_difference(found, 1, "train.steps", "training", "3", "50");
    expect_difference(found, 2, "threads", "arithmetic", "1", "2");
    expect_difference(found, 3, "data.train", "training", "\"a\"", "\"b c\"");
    expect_difference(found, 4, "eval.batches", "validation", "2", "3");
    expect_difference(found, 5, "autocast.float32", "arithmetic", "null", "[\"qkv\"]");
    cJSON_Delete(found);
    finish();
}

/* A run that stops and resumes is the same run. */
Test(run_groups, minutes_have_no_influence) {
    add((struct run_recipe){.name = "a", .seed = 1}, NULL);
    add((struct run_recipe){.name = "b", .seed = 2}, NULL);
    cr_assert(
        cJSON_AddNumberToObject(cJSON_GetObjectItem(runs[1].config.root, "train"), "minutes", 55));
    group_them();
    cr_expect_eq(arrlen(groups), 1, "%d groups", (int)arrlen(groups));
    finish();
}

/* Expects that a setting is a difference in arithmetic, not in training. */
static void expect_same_training(const char *section, const char *key, const char *values[2]) {
    char name[64], quoted[2][64];
    add((struct run_recipe){.name = "a"}, NULL);
    add((struct run_recipe){.name = "b"}, NULL);
    for (int i = 0; i < 2; i++) {
        cJSON *object = cJSON_GetObjectItem(runs[i].config.root, section);
        cr_assert(cJSON_AddStringToObject(object, key, values[i]));
        snprintf(quoted[i], sizeof quoted[i], "\"%s\"", values[i]);
    }
    group_them();
    cJSON *found = config_differences(groups);
    cr_expect_eq(cJSON_GetArraySize(found), 1);
    snprintf(name, sizeof name, "%s.%s", section, key);
    expect_difference(found, 0, name, "arithmetic", quoted[0], quoted[1]);
    cJSON_Delete(found);
    finish();
}

/* Recomputing gives the same bits. */
Test(run_groups, recomputing_is_no_other_training) {
    expect_same_training("train", "recompute", (const char *[]){"none", "layer"});
}

/* The dtype of moments is a difference in arithmetic too. */
Test(run_groups, moments_in_16_bit_are_no_other_training) {
    expect_same_training("optimizer", "moments", (const char *[]){"float32", "bfloat16"});
}

Test(run_groups, loss_scales_of_two_differ) {
    add((struct run_recipe){.more = ", \"loss_scale\": {\"init_scale\": 8}"}, NULL);
    add((struct run_recipe){.more = ", \"loss_scale\": {\"init_scale\": 16}"}, NULL);
    group_them();
    cJSON *found = config_differences(groups);
    cr_expect_eq(cJSON_GetArraySize(found), 1);
    expect_difference(found, 0, "loss_scale.init_scale", "arithmetic", "8", "16");
    cJSON_Delete(found);
    finish();
}
