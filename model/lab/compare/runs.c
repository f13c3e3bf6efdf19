#include "model/lab/compare/runs.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/util/printed.h"
#include "data/util/table.h"

/* ---- records */

enum { EXACT = 53 }; /* bits of the integers that a double represents exactly */

/* Adds a line of metrics.jsonl. Returns false if it has another format or its step does not follow
 * the earlier ones. */
static bool add_line(struct run_record *run, const cJSON *line) {
    int64_t step;
    if (!json_whole(&step, line, "step", 0, INT64_C(1) << EXACT)) return false;
    if (json_member(line, "val_loss")) {
        bool known = run_record_last_step(run) == step && arrlen(run->steps) > 0;
        struct run_validation validation = {.step = step,
                                            .loss = json_number_at(line, "val_loss"),
                                            .tokens = known ? arrlast(run->steps).tokens : NAN};
        if (arrlen(run->validations) > 0 && arrlast(run->validations).step >= step) return false;
        arrput(run->validations, validation);
        return true;
    }
    if (json_member(line, "choices_acc")) return true; /* nothing here is compared with it */
    if (!json_member(line, "loss") || run_record_last_step(run) >= step) return false;
    struct run_step values = {
        .step = step,
        .tokens = json_number_at(line, "tokens"),
        .loss = json_number_at(line, "loss"),
        .gradient_norm = json_number_at(line, "grad_norm"),
        .loss_scale = json_number_at(line, "loss_scale"),
        .tokens_per_s = json_number_at(line, "tokens_per_s"),
        .memory_bytes = json_number_at(line, "memory_bytes"),
        .skipped = cJSON_IsTrue(json_member(line, "skipped")),
    };
    arrput(run->steps, values);
    return true;
}

static int read_lines(struct run_record *run, FILE *file, const char *path, struct error *error) {
    char *text = NULL;
    size_t room = 0;
    ssize_t length;
    int status = 0;
    for (long number = 1; status == 0 && (length = getline(&text, &room, file)) >= 0; number++) {
        if (text[length - 1] != '\n') {
            run->cut = true; /* the writer was killed, or is still writing */
            break;
        }
        struct error ignored;
        cJSON *line;
        json_parse(&line, text, (size_t)length, "", &ignored);
        if (!add_line(run, line))
            status = fail(error,
                          "%s:%ld: this is no line that ./train writes there\n"
                          "(one JSON object with a step, which comes after the step before)",
                          path, number);
        cJSON_Delete(line);
    }
    if (status == 0 && ferror(file)) status = fail(error, "%s: %s", path, strerror(errno));
    free(text);
    return status;
}

static int read_metrics(struct run_record *run, struct error *error) {
    char path[FILE_PATH_MAX];
    if (file_path_join(path, run->path, "metrics.jsonl", error)) return -1;
    if (!file_exists(path))
        return fail(error, "%s: %s\n(a run with log.metrics=false has none)", path,
                    strerror(errno));
    int descriptor = file_open_regular(path, error);
    if (descriptor < 0) return -1;
    FILE *file = fdopen(descriptor, "r");
    if (!file) {
        close(descriptor);
        return fail_memory(error, "%s", path);
    }
    int status = read_lines(run, file, path, error);
    fclose(file);
    if (status == 0 && arrlen(run->steps) == 0)
        return fail(error, "%s: no step is in it yet", path);
    return status;
}

static int read_config(struct run_record *run, struct error *error) {
    if (!file_exists_in(run->path, "config.json"))
        return fail(error, "%s: no config.json is there\ngive run directories, such as runs/NAME",
                    run->path);
    if (json_file_open_in(&run->config, run->path, "config.json", error)) return -1;
    const cJSON *root = run->config.root;
    const cJSON *name = json_member(root, "name"), *precision = json_member(root, "precision");
    bool whole = json_whole(&run->seed, root, "seed", 0, INT64_C(1) << EXACT) &&
                 json_whole(&run->planned_steps, json_member(root, "train"), "steps", 1,
                            INT64_C(1) << EXACT);
    if (!whole || !cJSON_IsString(name) || !cJSON_IsString(precision))
        return fail(error,
                    "%s: it lacks name, precision, seed or train.steps: this is no config of a "
                    "run\n(that of a checkpoint is another file)",
                    run->config.where);
    run->name = name->valuestring;
    run->precision = precision->valuestring;
    run->in_fp32 = cJSON_IsFalse(json_member(json_member(root, "autocast"), "enabled"));
    return 0;
}

int run_record_read(struct run_record *run, const char *path, struct error *error) {
    *run = (struct run_record){0};
    run->path = strdup(path);
    if (!run->path) return fail_memory(error, "the path of a run");
    if (read_config(run, error) == 0 && read_metrics(run, error) == 0 &&
        json_file_open_optional(&run->profile, path, "profile.json", error) == 0)
        return 0;
    run_record_close(run);
    return -1;
}

void run_record_close(struct run_record *run) {
    arrfree(run->steps);
    arrfree(run->validations);
    json_file_close(&run->config);
    json_file_close(&run->profile);
    free(run->path);
    *run = (struct run_record){0};
}

int64_t run_record_last_step(const struct run_record *run) {
    return arrlen(run->steps) > 0 ? arrlast(run->steps).step : 0;
}

/* Returns a copy; ends the program without memory, as stb_ds does. */
static char *copy_text(const char *text) {
    char *copy = strdup(text);
    if (!copy) end_out_of_memory();
    return copy;
}

/* ---- configs, key by key */

static bool begins(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

static bool has_influence(const char *key) {
    static const char *const none[] = {"$schema", "name", "run_dir", "seed", "train.minutes"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (strcmp(key, none[i]) == 0) return false;
    return !begins(key, "log.") && !begins(key, "sample.") && !begins(key, "checkpoint.");
}

/* Adds references to the members that affect training, by keys such as "train.steps". */
static void add_settings(cJSON *settings, const cJSON *object, const char *prefix) {
    const cJSON *member;
    cJSON_ArrayForEach(member, object) {
        char *key;
        if (asprintf(&key, "%s%s%s", prefix, prefix[0] ? "." : "", member->string) < 0)
            end_out_of_memory();
        if (cJSON_IsObject(member)) add_settings(settings, member, key);
        else if (has_influence(key)) cJSON_AddItemReferenceToObject(settings, key, (cJSON *)member);
        free(key);
    }
}

/* True if the config of a run has the key only in some precisions. */
static bool is_of_a_precision(const char *key) {
    return begins(key, "loss_scale.") || begins(key, "fp8.") || begins(key, "mx.") ||
           begins(key, "nvfp4.");
}

/* True if the values of a key are equal in all configs. */
static bool all_same(cJSON *const *settings, int count, const char *key) {
    for (int i = 0; i < count; i++)
        for (int k = 0; k < i; k++) {
            const cJSON *a = json_member(settings[i], key), *b = json_member(settings[k], key);
            if ((!a || !b) && is_of_a_precision(key)) continue;
            if ((a || b) && !(a && b && cJSON_Compare(a, b, true))) return false;
        }
    return true;
}

static const char *weight_of(const char *key) {
    if (strcmp(key, "precision") == 0) return "expected";
    /* Exceptions in the blocks train and optimizer: they change only storage or arithmetic. */
    if (strcmp(key, "train.recompute") == 0 || strcmp(key, "optimizer.moments") == 0 ||
        (begins(key, "optimizer.") && strstr(key, "8bit")))
        return "arithmetic";
    if (begins(key, "eval.")) return "validation";
    if (begins(key, "objective.") || begins(key, "distill.") || begins(key, "model.") ||
        begins(key, "data.") || begins(key, "train.") || begins(key, "optimizer."))
        return "training";
    return "arithmetic";
}

static bool is_listed(const cJSON *differences, const char *key) {
    const cJSON *item;
    cJSON_ArrayForEach(item, differences) {
        if (strcmp(json_text_at(item, "key"), key) == 0) return true;
    }
    return false;
}

/* True if a key divides a step into micro-batches, and the steps of all runs have as many tokens.
 */
static bool divides_alike(const char *key, const struct run_record *const *runs, int count) {
    static const char *const keys[] = {"train.micro_batch_size", "train.grad_accum_steps",
                                       "train.batch_tokens"};
    bool divides = false;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) divides |= strcmp(key, keys[i]) == 0;
    for (int i = 0; i < count; i++)
        divides = divides && runs[i]->steps[0].tokens * (double)runs[0]->steps[0].step ==
                                 runs[0]->steps[0].tokens * (double)runs[i]->steps[0].step;
    return divides;
}

/* Returns the keys whose values differ between runs, as config_differences does. */
static cJSON *differences_of(const struct run_record *const *runs, const char *const *labels,
                             int count) {
    cJSON *differences = cJSON_CreateArray(), *settings[RUN_GROUPS_MAX];
    const cJSON *setting;
    for (int i = 0; i < count; i++)
        add_settings(settings[i] = cJSON_CreateObject(), runs[i]->config.root, "");
    for (int i = 0; i < count; i++) cJSON_ArrayForEach(setting, settings[i]) {
            const char *key = setting->string;
            if (is_listed(differences, key) || all_same(settings, count, key)) continue;
            cJSON *item = json_add_item(differences);
            cJSON_AddStringToObject(item, "key", key);
            cJSON_AddStringToObject(
                item, "weight", divides_alike(key, runs, count) ? "arithmetic" : weight_of(key));
            cJSON *values = cJSON_AddObjectToObject(item, "values");
            for (int other = 0; other < count; other++) {
                const cJSON *value = json_member(settings[other], key);
                cJSON_AddItemToObject(values, labels[other],
                                      value ? cJSON_Duplicate(value, true) : cJSON_CreateNull());
            }
        }
    for (int i = 0; i < count; i++) cJSON_Delete(settings[i]);
    return differences;
}

cJSON *config_differences(const struct run_group *groups) {
    const struct run_record *runs[RUN_GROUPS_MAX];
    const char *labels[RUN_GROUPS_MAX];
    for (int i = 0; i < arrlen(groups); i++)
        runs[i] = groups[i].runs[0], labels[i] = groups[i].label;
    return differences_of(runs, labels, (int)arrlen(groups));
}

/* ---- groups */

static bool has_seed(const struct run_group *group, int64_t seed) {
    for (int i = 0; i < arrlen(group->runs); i++)
        if (group->runs[i]->seed == seed) return true;
    return false;
}

static void add_run(struct run_group *group, const struct run_record *run) {
    int at = (int)arrlen(group->runs);
    while (at > 0 && group->runs[at - 1]->seed > run->seed) at--;
    arrins(group->runs, at, run);
}

/* Returns the index of the group for a run, -1 for a new group, or -2 with a message: a run joins a
 * group of its label, or without a label one of another seed and an equal config. */
static int find_group(const struct run_group *groups, const struct run_record *run,
                      const char *label, struct error *error) {
    for (int i = 0; i < arrlen(groups); i++) {
        const struct run_group *group = &groups[i];
        const struct run_record *const both[] = {group->runs[0], run};
        if (label ? !group->label || strcmp(group->label, label) != 0 : group->label != NULL)
            continue;
        cJSON *differences = differences_of(both, (const char *const[]){"a", "b"}, 2);
        bool seed = has_seed(group, run->seed), joins = !seed && !differences->child;
        if (label && seed)
            fail(error, "%s: \"%s\" has a run of seed %lld already\ngive it another label",
                 run->path, label, (long long)run->seed);
        else if (label && differences->child)
            fail(error,
                 "%s and %s are both to be \"%s\", but differ in %s\ngive them different labels",
                 both[0]->path, run->path, label, json_text_at(differences->child, "key"));
        cJSON_Delete(differences);
        if (joins) return i;
        if (label) return -2;
    }
    return -1;
}

/* ---- labels */

static bool label_taken(const struct run_group *groups, const char *label) {
    for (int i = 0; i < arrlen(groups); i++)
        if (groups[i].label && strcmp(groups[i].label, label) == 0) return true;
    return false;
}

static bool precisions_differ(const struct run_group *groups) {
    for (int i = 0; i < arrlen(groups); i++)
        for (int k = 0; k < i; k++)
            if (strcmp(groups[i].runs[0]->precision, groups[k].runs[0]->precision) == 0)
                return false;
    return true;
}

/* Writes name without the suffix -seedN of scripts/compare_precisions.sh. */
static void stem_of(char *stem, size_t size, const char *name) {
    snprintf(stem, size, "%s", name);
    char *end = strstr(stem, "-seed");
    if (end && end > stem && end[5] && strspn(end + 5, "0123456789") == strlen(end + 5)) *end = 0;
}

static void make_labels(struct run_group *groups) {
    bool by_precision = precisions_differ(groups);
    for (int i = 0; i < arrlen(groups); i++) {
        const struct run_record *run = groups[i].runs[0];
        char stem[512], label[600];
        if (groups[i].label) continue;
        stem_of(stem, sizeof stem, by_precision ? run->precision : run->name);
        snprintf(label, sizeof label, "%s", stem);
        for (int number = 2; label_taken(groups, label); number++)
            snprintf(label, sizeof label, "%s (%d)", stem, number);
        groups[i].label = copy_text(label);
    }
}

int run_groups_make(struct run_group **groups, const struct run_record *runs, char *const *labels,
                    int count, struct error *error) {
    *groups = NULL;
    for (int i = 0; i < count; i++) {
        int at = find_group(*groups, &runs[i], labels[i], error);
        if (at == -2) return -1;
        if (at == -1) {
            struct run_group group = {labels[i] ? copy_text(labels[i]) : NULL, NULL};
            at = (int)arrlen(*groups);
            if (at == RUN_GROUPS_MAX)
                return fail(error,
                            "%s: at most %d groups can be compared at once\n(runs that differ in "
                            "more than their seed are different groups)",
                            runs[i].path, RUN_GROUPS_MAX);
            arrput(*groups, group);
        }
        add_run(&(*groups)[at], &runs[i]);
    }
    make_labels(*groups);
    return 0;
}

void run_groups_free(struct run_group *groups) {
    for (int i = 0; i < arrlen(groups); i++) {
        free(groups[i].label);
        arrfree(groups[i].runs);
    }
    arrfree(groups);
}
