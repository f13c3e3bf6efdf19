#include "model/lab/compare/run_groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/printed.h"

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

/* A key that affects training, such as "train.steps", and its value as JSON. */
struct setting {
    char *key, *value;
};

static void add_settings(struct setting **settings, const cJSON *object, const char *prefix) {
    const cJSON *member;
    cJSON_ArrayForEach(member, object) {
        char *key;
        if (asprintf(&key, "%s%s%s", prefix, prefix[0] ? "." : "", member->string) < 0)
            end_out_of_memory();
        if (cJSON_IsObject(member)) add_settings(settings, member, key);
        else if (has_influence(key)) {
            struct setting setting = {copy_text(key), cJSON_PrintUnformatted(member)};
            arrput(*settings, setting);
        }
        free(key);
    }
}

/* Returns the settings of a run's config. */
static struct setting *settings_of(const struct run_record *run) {
    struct setting *settings = NULL;
    add_settings(&settings, run->config.root, "");
    return settings;
}

static void free_settings(struct setting *settings) {
    for (int i = 0; i < arrlen(settings); i++) {
        free(settings[i].key);
        cJSON_free(settings[i].value);
    }
    arrfree(settings);
}

static const char *value_of(const struct setting *settings, const char *key) {
    for (int i = 0; i < arrlen(settings); i++)
        if (strcmp(settings[i].key, key) == 0) return settings[i].value;
    return NULL;
}

/* True if the values of a key are equal in all configs. */
static bool all_same(struct setting *const *settings, int count, const char *key) {
    for (int i = 0; i < count; i++)
        for (int k = 0; k < i; k++) {
            const char *a = value_of(settings[i], key), *b = value_of(settings[k], key);
            bool missing = (!a || !b) && begins(key, "loss_scale.");
            if (a != b && !missing && !(a && b && strcmp(a, b) == 0)) return false;
        }
    return true;
}

static enum config_weight weight_of(const char *key) {
    if (strcmp(key, "precision") == 0) return CONFIG_WEIGHT_EXPECTED;
    /* Exceptions in the blocks train and optimizer: they change only storage or arithmetic. */
    if (strcmp(key, "train.recompute") == 0 || strcmp(key, "optimizer.moments") == 0)
        return CONFIG_WEIGHT_ARITHMETIC;
    if (begins(key, "eval.")) return CONFIG_WEIGHT_VALIDATION;
    if (begins(key, "model.") || begins(key, "data.") || begins(key, "train.") ||
        begins(key, "optimizer."))
        return CONFIG_WEIGHT_TRAINING;
    return CONFIG_WEIGHT_ARITHMETIC;
}

/* Returns the keys whose values differ between runs, as config_differences does. */
static struct config_difference *differences_of(const struct run_record *const *runs, int count) {
    struct config_difference *differences = NULL;
    struct setting *settings[RUN_GROUPS_MAX];
    for (int i = 0; i < count; i++) settings[i] = settings_of(runs[i]);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < arrlen(settings[i]); k++) {
            char *key = settings[i][k].key;
            bool known = false;
            for (int d = 0; d < arrlen(differences) && !known; d++)
                known = strcmp(differences[d].key, key) == 0;
            if (known || all_same(settings, count, key)) continue;
            struct config_difference found = {copy_text(key), weight_of(key), NULL};
            for (int other = 0; other < count; other++) {
                const char *value = value_of(settings[other], key);
                arrput(found.values, value ? copy_text(value) : NULL);
            }
            arrput(differences, found);
        }
    for (int i = 0; i < count; i++) free_settings(settings[i]);
    return differences;
}

struct config_difference *config_differences(const struct run_group *groups) {
    const struct run_record *runs[RUN_GROUPS_MAX];
    for (int i = 0; i < arrlen(groups); i++) runs[i] = groups[i].runs[0];
    return differences_of(runs, (int)arrlen(groups));
}

void config_differences_free(struct config_difference *differences) {
    for (int i = 0; i < arrlen(differences); i++) {
        for (int k = 0; k < arrlen(differences[i].values); k++) free(differences[i].values[k]);
        arrfree(differences[i].values);
        free(differences[i].key);
    }
    arrfree(differences);
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
        struct config_difference *differences = differences_of(both, 2);
        bool seed = has_seed(group, run->seed), joins = !seed && !differences;
        if (label && seed)
            fail(error, "%s: \"%s\" has a run of seed %lld already\ngive it another label",
                 run->path, label, (long long)run->seed);
        else if (label && differences)
            fail(error,
                 "%s and %s are both to be \"%s\", but differ in %s\ngive them different labels",
                 both[0]->path, run->path, label, differences[0].key);
        config_differences_free(differences);
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
