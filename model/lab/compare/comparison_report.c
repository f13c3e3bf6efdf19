#include "model/lab/compare/comparison_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/printed.h"
#include "data/util/table.h"

/* ---- warnings */

__attribute__((format(printf, 2, 3))) static void warn(cJSON *warnings, const char *format, ...) {
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0) end_out_of_memory();
    va_end(arguments);
    cJSON_AddItemToArray(warnings, cJSON_CreateString(text));
    free(text);
}

static void warn_of_configs(cJSON *warnings, const cJSON *differences) {
    const cJSON *difference;
    cJSON_ArrayForEach(difference, differences) {
        const char *key = json_text_at(difference, "key");
        const char *weight = json_text_at(difference, "weight");
        if (strcmp(weight, "training") == 0)
            warn(warnings, "%s differs: these are different trainings, whose losses need not agree",
                 key);
        if (strcmp(weight, "validation") == 0)
            warn(warnings, "%s differs: validation losses may be of other text", key);
    }
}

static void warn_of_runs(cJSON *warnings, const struct run_group *group) {
    if (verdict_computed_in_fp32(group))
        warn(warnings, "%s: autocast.enabled is false, so it computed in fp32 everywhere",
             group->label);
    for (int r = 0; r < arrlen(group->runs); r++) {
        const struct run_record *run = group->runs[r];
        int64_t last = run_record_last_step(run);
        if (last < run->planned_steps)
            warn(warnings, "%s has done %" PRId64 " of %" PRId64 " steps", run->path, last,
                 run->planned_steps);
        if (run->cut)
            warn(warnings, "%s: the last line of its metrics.jsonl is not whole and left out",
                 run->path);
    }
}

static void warn_of_unpaired(cJSON *warnings, const struct run_group *group, const char *other,
                             int pairs) {
    int runs = (int)arrlen(group->runs);
    if (pairs < runs)
        warn(warnings,
             "%s: %d of its %d runs have a seed that %s has too; the others do not count in "
             "differences",
             group->label, pairs, runs, other);
}

static void warn_of_pairs(cJSON *warnings, const struct comparison *c) {
    const char *label = c->group->label, *reference = c->reference->label;
    int pairs = (int)arrlen(c->pairs);
    if (c->same_seeds) {
        warn_of_unpaired(warnings, c->group, reference, pairs);
        warn_of_unpaired(warnings, c->reference, label, pairs);
    } else {
        warn(warnings,
             "%s and %s have no seed in common: other weights and batches, so that differences of "
             "some %% mean nothing",
             label, reference);
    }
    if (c->validation_step >= 0 && (double)c->validation_step < c->step[c->steps - 1])
        warn(warnings, "%s: the last validation in common with %s is that of step %" PRId64, label,
             reference, c->validation_step);
}

/* ---- the report */

/* Returns the index of the group of that label, by default of the first; -1 with a message. */
static int find_reference(const struct run_group *groups, const char *label, struct error *error) {
    char labels[ERROR_MAX] = "";
    for (int g = 0; g < arrlen(groups); g++) {
        size_t used = strlen(labels);
        if (!label || strcmp(groups[g].label, label) == 0) return g;
        snprintf(labels + used, sizeof labels - used, "%s %s", g ? "," : "", groups[g].label);
    }
    return fail(error, "--reference %s: the groups are%s", label, labels);
}

static void add_limits(cJSON *root, const struct limits *limits) {
    cJSON *item = cJSON_AddObjectToObject(root, "limits");
    JSON_NUMBERS(item, {"loss_percent", limits->loss}, {"curve_percent", limits->curve},
                 {"norm_percent", limits->norm}, {"correlation", limits->correlation},
                 {"skipped_percent", limits->skipped});
    cJSON_AddBoolToObject(item, "partial", limits->partial);
    cJSON_AddBoolToObject(item, "lower_is_fine", limits->lower_is_fine);
}

static cJSON *text_or_null(const char *text) {
    return text ? cJSON_CreateString(text) : cJSON_CreateNull();
}

/* Makes the report of all comparisons. */
static cJSON *report_of(const struct run_group *groups, const struct comparison *comparisons,
                        int reference, const struct comparison_options *options) {
    int count = (int)arrlen(groups);
    struct verdict verdicts[RUN_GROUPS_MAX];
    bool pass = true;
    for (int g = 0; g < count; g++) {
        verdict_make(&verdicts[g], &comparisons[g], &options->limits);
        pass = pass && verdicts[g].pass;
    }
    verdict_rank(verdicts, comparisons, count, reference);
    cJSON *root = cJSON_CreateObject(), *differences = config_differences(groups);
    cJSON_AddBoolToObject(root, "pass", pass);
    cJSON_AddStringToObject(root, "reference", groups[reference].label);
    cJSON_AddItemToObject(root, "made_by", text_or_null(options->made_by));
    cJSON_AddItemToObject(root, "command", text_or_null(options->command));
    cJSON *warnings = cJSON_AddArrayToObject(root, "warnings");
    warn_of_configs(warnings, differences);
    add_limits(root, &options->limits);
    cJSON *items = cJSON_AddArrayToObject(root, "groups");
    for (int g = 0; g < count; g++) {
        warn_of_runs(warnings, &groups[g]);
        warn_of_pairs(warnings, &comparisons[g]);
        comparison_add_group(items, &comparisons[g], &verdicts[g]);
    }
    cJSON_AddItemToObject(root, "config_differences", differences);
    return root;
}

cJSON *comparison_report(const struct run_record *runs, char *const *labels, int count,
                         const struct comparison_options *options, struct error *error) {
    struct run_group *groups;
    struct comparison comparisons[RUN_GROUPS_MAX] = {{0}};
    int reference = -1, made = 0;
    cJSON *report = NULL;
    int status = run_groups_make(&groups, runs, labels, count, error);
    if (status == 0 && arrlen(groups) < 2)
        status = fail(error, "all runs differ in their seed only: there is nothing to compare\n"
                             "to see them as different, give them labels: LABEL=RUN");
    if (status == 0) reference = find_reference(groups, options->reference, error);
    for (; reference >= 0 && made < arrlen(groups); made++)
        if (comparison_make(&comparisons[made], &groups[reference], &groups[made], error)) break;
    if (reference >= 0 && made == arrlen(groups))
        report = report_of(groups, comparisons, reference, options);
    for (int g = 0; g < made; g++) comparison_free(&comparisons[g]);
    run_groups_free(groups);
    return report;
}
