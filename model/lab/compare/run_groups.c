#include "model/lab/compare/run_groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

enum { KEY_MAX = 256 };

/* Returns a copy; aborts without memory, as stb_ds does. */
static char *copy_text(const char *text) {
    char *copy = strdup(text);
    if (!copy) abort();
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

static void add_keys(char ***keys, const cJSON *object, const char *prefix) {
    const cJSON *member;
    cJSON_ArrayForEach(member, object) {
        char key[KEY_MAX];
        int known = 0;
        snprintf(key, sizeof key, "%s%s%s", prefix, prefix[0] ? "." : "", member->string);
        if (cJSON_IsObject(member)) {
            add_keys(keys, member, key);
            continue;
        }
        for (int i = 0; i < arrlen(*keys) && !known; i++) known = strcmp((*keys)[i], key) == 0;
        if (!known && has_influence(key)) arrput(*keys, copy_text(key));
    }
}

/* Returns an stb_ds array of the keys of all runs that affect training. */
static char **all_keys(const struct run_record *const *runs, int count) {
    char **keys = NULL;
    for (int i = 0; i < count; i++) add_keys(&keys, runs[i]->config.root, "");
    return keys;
}

static void free_texts(char **texts) {
    for (int i = 0; i < arrlen(texts); i++) free(texts[i]);
    arrfree(texts);
}

static const cJSON *value_at(const struct run_record *run, const char *key) {
    const cJSON *object = run->config.root;
    char part[KEY_MAX];
    for (;;) {
        size_t length = strcspn(key, ".");
        snprintf(part, sizeof part, "%.*s", (int)length, key);
        object = json_member(object, part);
        if (!object || !key[length]) return object;
        key += length + 1;
    }
}

static bool same_value(const struct run_record *a, const struct run_record *b, const char *key) {
    const cJSON *left = value_at(a, key), *right = value_at(b, key);
    if ((!left || !right) && begins(key, "loss_scale.")) return true;
    return left && right ? cJSON_Compare(left, right, true) : left == right;
}

/* True if two runs differ in a key that affects training; key becomes the first such key. */
static bool differ(char key[KEY_MAX], const struct run_record *a, const struct run_record *b) {
    const struct run_record *both[] = {a, b};
    char **keys = all_keys(both, 2);
    bool found = false;
    for (int i = 0; i < arrlen(keys) && !found; i++) {
        found = !same_value(a, b, keys[i]);
        snprintf(key, KEY_MAX, "%s", keys[i]);
    }
    free_texts(keys);
    return found;
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

static bool fits(const struct run_group *group, const struct run_record *run) {
    char key[KEY_MAX];
    return !group->label && !has_seed(group, run->seed) && !differ(key, group->runs[0], run);
}

/* Fails unless the run may join the group of its label. */
static int check_labelled(const struct run_group *group, const struct run_record *run,
                          struct error *error) {
    char key[KEY_MAX];
    if (has_seed(group, run->seed))
        return fail(error, "%s: \"%s\" has a run of seed %lld already\ngive it another label",
                    run->path, group->label, (long long)run->seed);
    if (!differ(key, group->runs[0], run)) return 0;
    return fail(error,
                "%s and %s are both to be \"%s\", but differ in %s\ngive them different labels",
                group->runs[0]->path, run->path, group->label, key);
}

/* Returns the index of the group for a run, -1 for a new group, or -2 with a message. */
static int find_group(const struct run_group *groups, const struct run_record *run,
                      const char *label, struct error *error) {
    for (int i = 0; i < arrlen(groups); i++) {
        const struct run_group *group = &groups[i];
        if (!label && fits(group, run)) return i;
        if (label && group->label && strcmp(group->label, label) == 0)
            return check_labelled(group, run, error) ? -2 : i;
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

/* ---- differences */

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

static bool all_same(const struct run_group *groups, const char *key) {
    for (int i = 0; i < arrlen(groups); i++)
        for (int k = 0; k < i; k++)
            if (!same_value(groups[i].runs[0], groups[k].runs[0], key)) return false;
    return true;
}

struct config_difference *config_differences(const struct run_group *groups) {
    struct config_difference *differences = NULL;
    const struct run_record *runs[RUN_GROUPS_MAX];
    int count = (int)arrlen(groups);
    for (int i = 0; i < count; i++) runs[i] = groups[i].runs[0];
    char **keys = all_keys(runs, count);
    for (int i = 0; i < arrlen(keys); i++) {
        if (all_same(groups, keys[i])) continue;
        struct config_difference difference = {copy_text(keys[i]), weight_of(keys[i]), NULL};
        for (int k = 0; k < count; k++) {
            const cJSON *value = value_at(runs[k], keys[i]);
            arrput(difference.values, value ? cJSON_PrintUnformatted(value) : NULL);
        }
        arrput(differences, difference);
    }
    free_texts(keys);
    return differences;
}

void config_differences_free(struct config_difference *differences) {
    for (int i = 0; i < arrlen(differences); i++) {
        free(differences[i].key);
        free_texts(differences[i].values);
    }
    arrfree(differences);
}
