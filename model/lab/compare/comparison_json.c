#include "model/lab/compare/comparison_print.h"

/* A report as JSON. */
#include <math.h>
#include <stdlib.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "model/lab/compare/comparison_tables.h"

/* Adds a number; cJSON prints one that is not finite as null. */
static void number(cJSON *object, const char *key, double value) {
    cJSON_AddNumberToObject(object, key, value);
}

static void text(cJSON *object, const char *key, const char *value) {
    if (value) cJSON_AddStringToObject(object, key, value);
    else cJSON_AddNullToObject(object, key);
}

static cJSON *add_item(cJSON *array) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(array, item);
    return item;
}

static cJSON *difference(cJSON *object, const char *key, const struct difference *d) {
    cJSON *item = cJSON_AddObjectToObject(object, key);
    number(item, "percent", d->mean);
    number(item, "pairs", d->count);
    number(item, "scatter", d->scatter);
    number(item, "noise", d->noise);
    number(item, "margin", d->margin);
    if (d->count > 1 && isfinite(d->mean)) cJSON_AddBoolToObject(item, "real", d->real);
    else cJSON_AddNullToObject(item, "real");
    return item;
}

static void add_limits(cJSON *root, const struct limits *limits) {
    cJSON *item = cJSON_AddObjectToObject(root, "limits");
    number(item, "loss_percent", limits->loss);
    number(item, "curve_percent", limits->curve);
    number(item, "norm_percent", limits->norm);
    number(item, "correlation", limits->correlation);
    number(item, "skipped_percent", limits->skipped);
    cJSON_AddBoolToObject(item, "partial", limits->partial);
    cJSON_AddBoolToObject(item, "lower_is_fine", limits->lower_is_fine);
}

static void add_runs(cJSON *object, const struct run_group *group) {
    cJSON *runs = cJSON_AddArrayToObject(object, "runs");
    for (int i = 0; i < arrlen(group->runs); i++) {
        const struct run_record *run = group->runs[i];
        cJSON *item = add_item(runs);
        text(item, "path", run->path);
        text(item, "name", run->name);
        number(item, "seed", (double)run->seed);
        number(item, "steps", (double)run_record_last_step(run));
        number(item, "planned_steps", (double)run->planned_steps);
    }
}

static void add_differences(cJSON *object, const struct comparison *c) {
    number(object, "training_loss", c->training_loss[COMPARE_OTHER]);
    difference(object, "training_difference", &c->training);
    number(object, "validation_loss", c->validation_loss[COMPARE_OTHER]);
    number(object, "validation_step",
           c->validation_step < 0 ? (double)NAN : (double)c->validation_step);
    difference(object, "validation_difference", &c->validation);
    number(difference(object, "curve", &c->curve), "step", c->curve_step);
    cJSON *norm = difference(object, "gradient_norm", &c->norm);
    number(norm, "steps", c->norm_steps);
    number(norm, "zero", c->norms_zero);
    number(norm, "not_finite", c->norms_lost);
    number(norm, "correlation", c->norm_correlation);
    number(norm, "smoothed_correlation", c->norm_smoothed_correlation);
    number(norm, "geometric_mean_ratio", c->norm_ratio);
}

static void add_figures(cJSON *object, const struct comparison *c) {
    const struct group_figures *figures = &c->figures;
    cJSON *skipped = cJSON_AddObjectToObject(object, "skipped");
    number(skipped, "steps", (double)figures->skipped);
    number(skipped, "of", (double)figures->steps);
    number(skipped, "in_search", (double)figures->skipped_in_search);
    number(object, "not_finite", (double)figures->lost);
    if (isfinite(figures->scale_first)) {
        cJSON *scale = cJSON_AddObjectToObject(object, "loss_scale");
        number(scale, "first", figures->scale_first);
        number(scale, "last", figures->scale_last);
        number(scale, "smallest", figures->scale_smallest);
        number(scale, "largest", figures->scale_largest);
        number(scale, "changes", figures->scale_changes);
    } else {
        cJSON_AddNullToObject(object, "loss_scale");
    }
    number(object, "tokens_per_s", figures->tokens_per_s);
    number(object, "speed_up", c->speed_up);
    number(object, "memory_bytes", figures->memory_bytes);
    number(object, "memory_saving_percent", c->memory_saving);
}

static void add_profile(cJSON *object, const struct run_record *run) {
    if (!run) {
        cJSON_AddNullToObject(object, "profile");
        return;
    }
    cJSON *profile = cJSON_AddObjectToObject(object, "profile");
    number(profile, "step_ms", run->profile_step_ms);
    number(profile, "products_ms", run->profile_products_ms);
    cJSON *operations = cJSON_AddObjectToObject(profile, "operations");
    for (int i = 0; i < arrlen(run->profile); i++)
        number(operations, run->profile[i].name, run->profile[i].ms);
}

static void add_checks(cJSON *object, const struct verdict *verdict) {
    static const char *const outcomes[] = {"pass", "fail", "noise", "nothing"};
    cJSON *checks = cJSON_AddArrayToObject(object, "checks");
    for (int i = 0; i < CHECKS; i++) {
        const struct check *check = &verdict->checks[i];
        cJSON *item = add_item(checks);
        text(item, "name", check_name(i));
        text(item, "outcome", outcomes[check->outcome]);
        number(item, "value", check->value);
        number(item, "limit", check->limit);
        text(item, "text", check->text);
    }
}

static void add_group(cJSON *groups, const struct comparison_report *report, int g) {
    const struct run_group *group = &report->groups[g];
    const struct comparison *c = &report->comparisons[g];
    const struct verdict *verdict = &report->verdicts[g];
    cJSON *object = add_item(groups);
    text(object, "label", group->label);
    text(object, "verdict", verdict->pass ? comparison_report_word(report, g) : "fail");
    text(object, "precision", group->runs[0]->precision);
    add_runs(object, group);
    number(object, "steps", c->steps);
    number(object, "window", c->window);
    number(object, "settled_after", c->settled);
    add_differences(object, c);
    add_figures(object, c);
    add_profile(object, profiled_run(group));
    add_checks(object, verdict);
}

static void add_config_differences(cJSON *root, const struct comparison_report *report) {
    static const char *const weights[] = {"expected", "arithmetic", "validation", "training"};
    cJSON *array = cJSON_AddArrayToObject(root, "config_differences");
    for (int i = 0; i < arrlen(report->differences); i++) {
        const struct config_difference *found = &report->differences[i];
        cJSON *item = add_item(array);
        text(item, "key", found->key);
        text(item, "weight", weights[found->weight]);
        cJSON *values = cJSON_AddObjectToObject(item, "values");
        for (int g = 0; g < arrlen(found->values); g++) {
            const char *value = found->values[g], *label = report->groups[g].label;
            if (value) cJSON_AddRawToObject(values, label, value);
            else cJSON_AddNullToObject(values, label);
        }
    }
}

void comparison_print_json(FILE *out, const struct comparison_report *report) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddBoolToObject(root, "pass", comparison_report_passes(report));
    text(root, "reference", report->groups[report->reference].label);
    text(root, "made_by", report->made_by);
    text(root, "command", report->command);
    cJSON *warnings = cJSON_AddArrayToObject(root, "warnings");
    for (int i = 0; i < arrlen(report->warnings); i++)
        cJSON_AddItemToArray(warnings, cJSON_CreateString(report->warnings[i]));
    add_limits(root, &report->limits);
    cJSON *groups = cJSON_AddArrayToObject(root, "groups");
    for (int g = 0; g < arrlen(report->groups); g++) add_group(groups, report, g);
    add_config_differences(root, report);
    char *printed = cJSON_Print(root);
    if (!printed) abort(); /* as stb_ds does when memory is short */
    fprintf(out, "%s\n", printed);
    free(printed);
    cJSON_Delete(root);
}
