#include "model/lab/compare/comparison_report.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/json.h"
#include "data/util/printed.h"
#include "data/util/table.h"

/* ---- figures of a group */

static cJSON *difference(cJSON *object, const char *key, const struct difference *d) {
    cJSON *item = cJSON_AddObjectToObject(object, key);
    JSON_NUMBERS(item, {"percent", d->mean}, {"pairs", d->count}, {"scatter", d->scatter},
                 {"noise", d->noise}, {"margin", d->margin});
    if (d->count > 1 && isfinite(d->mean)) cJSON_AddBoolToObject(item, "real", d->real);
    else cJSON_AddNullToObject(item, "real");
    return item;
}

static void add_equal_loss(cJSON *object, const struct comparison *c) {
    struct equal_loss equal;
    cJSON *item = cJSON_AddObjectToObject(object, "equal_loss");
    equal_loss_make(&equal, c);
    JSON_NUMBERS(item, {"validation_loss", equal.loss}, {"speed_up", 1 + equal.speed.mean / 100});
    difference(item, "tokens", &equal.tokens);
    difference(item, "speed", &equal.speed);
    cJSON_AddStringToObject(item, "text", equal.text);
}

static void add_runs(cJSON *object, const struct run_group *group) {
    cJSON *runs = cJSON_AddArrayToObject(object, "runs");
    for (int i = 0; i < arrlen(group->runs); i++) {
        const struct run_record *run = group->runs[i];
        cJSON *item = json_add_item(runs);
        cJSON_AddStringToObject(item, "path", run->path);
        cJSON_AddStringToObject(item, "name", run->name);
        JSON_NUMBERS(item, {"seed", (double)run->seed},
                     {"steps", (double)run_record_last_step(run)},
                     {"planned_steps", (double)run->planned_steps});
    }
}

static void add_differences(cJSON *object, const struct comparison *c) {
    JSON_NUMBERS(
        object, {"training_loss", c->training_loss[COMPARE_OTHER]},
        {"validation_loss", c->validation_loss[COMPARE_OTHER]},
        {"validation_step", c->validation_step < 0 ? (double)NAN : (double)c->validation_step});
    difference(object, "training_difference", &c->training);
    difference(object, "validation_difference", &c->validation);
    JSON_NUMBERS(difference(object, "curve", &c->curve), {"step", c->curve_step});
    JSON_NUMBERS(difference(object, "gradient_norm", &c->norm), {"steps", c->norm_steps},
                 {"zero", c->norms_zero}, {"not_finite", c->norms_not_finite},
                 {"correlation", c->norm_correlation},
                 {"smoothed_correlation", c->norm_smoothed_correlation},
                 {"median_ratio", c->norm_median}, {"geometric_mean_ratio", c->norm_ratio});
}

/* Adds the loss scales of a run; null if all are 1. */
static void add_scales(cJSON *object, const struct run_record *run) {
    double first = NAN, last = NAN, smallest = NAN, largest = NAN, changes = 0;
    for (int i = 0; i < arrlen(run->steps); i++) {
        double scale = run->steps[i].loss_scale;
        if (!isfinite(scale)) continue;
        if (isnan(first)) first = last = scale;
        changes += scale != last;
        smallest = fmin(smallest, scale);
        largest = fmax(largest, scale);
        last = scale;
    }
    if (isnan(first) || (smallest == 1 && largest == 1))
        cJSON_AddNullToObject(object, "loss_scale");
    else
        JSON_NUMBERS(cJSON_AddObjectToObject(object, "loss_scale"), {"first", first},
                     {"last", last}, {"smallest", smallest}, {"largest", largest},
                     {"changes", changes});
}

static void add_figures(cJSON *object, const struct comparison *c) {
    const struct group_figures *figures = &c->figures;
    double skipped = (double)figures->skipped, steps = (double)figures->steps;
    JSON_NUMBERS(cJSON_AddObjectToObject(object, "skipped"), {"steps", skipped}, {"of", steps},
                 {"share", skipped / steps}, {"in_search", (double)figures->skipped_in_search});
    add_scales(object, c->group->runs[0]);
    JSON_NUMBERS(object, {"not_finite", (double)figures->not_finite},
                 {"tokens_per_s", figures->tokens_per_s},
                 {"tokens_per_s_low", figures->tokens_per_s_quartiles[0]},
                 {"tokens_per_s_high", figures->tokens_per_s_quartiles[1]},
                 {"speed_up", c->speed_up}, {"memory_bytes", figures->memory_bytes},
                 {"memory_saving_percent", c->memory_saving});
}

/* Adds the profile of the first run of the group that has one. */
static void add_profile(cJSON *object, const struct run_group *group) {
    const cJSON *root = NULL;
    for (int i = 0; i < arrlen(group->runs) && !root; i++) root = group->runs[i]->profile.root;
    if (!root) {
        cJSON_AddNullToObject(object, "profile");
        return;
    }
    cJSON *profile = cJSON_AddObjectToObject(object, "profile");
    JSON_NUMBERS(profile, {"step_ms", json_number_at(root, "step_ms")},
                 {"products_ms", json_number_at(root, "products_ms")});
    cJSON *operations = cJSON_Duplicate(json_member(root, "operations"), true);
    cJSON_AddItemToObject(profile, "operations", operations ? operations : cJSON_CreateObject());
}

/* ---- curves */

enum { POINTS_MAX = 500 }; /* per curve; more are not visible on a page */

/* Adds values, every so many of them and the last; those that are not finite become null. */
static void add_curve(cJSON *object, const char *key, const double *values, int count) {
    cJSON *array = cJSON_AddArrayToObject(object, key);
    int stride = count / POINTS_MAX + 1;
    for (int i = (count - 1) % stride; i < count; i += stride)
        cJSON_AddItemToArray(array, cJSON_CreateNumber(values[i]));
}

/* Adds a figure of the steps of a run, smoothed over `window` steps. `offset`: of a double in
 * struct run_step. */
static void add_steps(cJSON *object, const char *key, const struct run_record *run, size_t offset,
                      int window) {
    int count = (int)arrlen(run->steps);
    double *values = NULL, *smoothed = NULL;
    arrsetlen(smoothed, (size_t)count);
    for (int i = 0; i < count; i++)
        arrput(values, *(const double *)((const char *)&run->steps[i] + offset));
    smooth(smoothed, values, count, count > window ? window : 1);
    add_curve(object, key, smoothed, count);
    arrfree(values);
    arrfree(smoothed);
}

/* Adds what scripts/report.py draws: losses of all runs, and curves of the first run. */
static void add_curves(cJSON *object, const struct comparison *c) {
    const struct run_record *run = c->group->runs[0];
    double *steps = NULL, speed = run_tokens_per_s(run);
    cJSON *curves = cJSON_AddObjectToObject(object, "curves");
    add_curve(curves, "loss_step", c->step, c->steps);
    add_curve(curves, "loss", c->smoothed[COMPARE_OTHER], c->steps);
    add_curve(curves, "loss_percent", c->percent, c->steps);
    for (int i = 0; i < arrlen(run->steps); i++) arrput(steps, (double)run->steps[i].step);
    add_curve(curves, "step", steps, (int)arrlen(steps));
    add_steps(curves, "gradient_norm", run, offsetof(struct run_step, gradient_norm), c->window);
    add_steps(curves, "tokens_per_s", run, offsetof(struct run_step, tokens_per_s), c->window);
    if (json_at(object, "loss_scale.first"))
        add_steps(curves, "loss_scale", run, offsetof(struct run_step, loss_scale), 1);
    cJSON *validations = cJSON_AddArrayToObject(curves, "validations");
    for (int i = 0; i < arrlen(run->validations); i++)
        JSON_NUMBERS(json_add_item(validations), {"step", (double)run->validations[i].step},
                     {"loss", run->validations[i].loss},
                     {"seconds", run->validations[i].tokens / speed});
    arrfree(steps);
}

/* ---- groups */

static void add_group(cJSON *groups, const struct comparison *c, const struct verdict *verdict) {
    const struct run_group *group = c->group;
    bool compared = group != c->reference;
    cJSON *object = json_add_item(groups);
    char rank[40];
    snprintf(rank, sizeof rank, "rank %d of %d", verdict->rank, verdict->ranked);
    cJSON_AddStringToObject(object, "label", group->label);
    cJSON_AddStringToObject(object, "verdict",
                            !verdict->pass  ? "fail"
                            : !compared     ? "reference"
                            : verdict->rank ? rank
                                            : "pass");
    JSON_NUMBERS(object, {"rank", verdict->rank ? verdict->rank : NAN});
    cJSON_AddBoolToObject(object, "compared", compared);
    cJSON_AddStringToObject(object, "precision", group->runs[0]->precision);
    add_runs(object, group);
    JSON_NUMBERS(object, {"steps", c->steps}, {"window", c->window}, {"settled_after", c->settled});
    add_differences(object, c);
    add_figures(object, c);
    if (compared) add_equal_loss(object, c);
    else cJSON_AddNullToObject(object, "equal_loss");
    add_profile(object, group);
    cJSON_AddItemToObject(object, "checks", verdict->checks);
    add_curves(object, c);
}

/* ---- warnings */

static void warn_of_configs(cJSON *warnings, const cJSON *differences) {
    const cJSON *difference;
    cJSON_ArrayForEach(difference, differences) {
        const char *key = json_text_at(difference, "key");
        const char *weight = json_text_at(difference, "weight");
        if (strcmp(weight, "training") == 0)
            json_add_text(warnings,
                          "%s differs: these are different trainings, whose losses need not agree",
                          key);
        if (strcmp(weight, "validation") == 0)
            json_add_text(warnings, "%s differs: validation losses may be of other text", key);
    }
}

/* Speeds of steps differ by some % on an idle machine. */
static void warn_of_speed(cJSON *warnings, const struct comparison *c) {
    const double *quartiles = c->figures.tokens_per_s_quartiles;
    if (quartiles[1] - quartiles[0] <= 0.2 * c->figures.tokens_per_s) return;
    json_add_text(warnings,
                  "half of the steps of %s ran at %.0f to %.0f tokens/s: the machine was busy with "
                  "something else, so speeds are uncertain",
                  c->group->label, quartiles[0], quartiles[1]);
}

static void warn_of_runs(cJSON *warnings, const struct run_group *group) {
    for (int r = 0; r < arrlen(group->runs); r++) {
        const struct run_record *run = group->runs[r];
        int64_t last = run_record_last_step(run);
        if (last < run->planned_steps)
            json_add_text(warnings, "%s has done %" PRId64 " of %" PRId64 " step%s", run->path,
                          last, run->planned_steps, PLURAL(run->planned_steps));
        if (run->cut)
            json_add_text(warnings,
                          "%s: the last line of its metrics.jsonl is not whole and left out",
                          run->path);
    }
}

static void warn_of_unpaired(cJSON *warnings, const struct run_group *group, const char *other,
                             int pairs) {
    int runs = (int)arrlen(group->runs);
    if (pairs < runs)
        json_add_text(
            warnings,
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
        json_add_text(
            warnings,
            "%s and %s have no seed in common: other weights and batches, so that differences of "
            "some %% mean nothing",
            label, reference);
    }
    if (c->validation_step >= 0 && (double)c->validation_step < c->step[c->steps - 1])
        json_add_text(warnings,
                      "%s: the last validation in common with %s is that of step %" PRId64, label,
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
    cJSON_AddItemToObject(root, "made_by",
                          options->made_by ? cJSON_CreateString(options->made_by)
                                           : cJSON_CreateNull());
    cJSON *warnings = cJSON_AddArrayToObject(root, "warnings");
    warn_of_configs(warnings, differences);
    add_limits(root, &options->limits);
    cJSON *items = cJSON_AddArrayToObject(root, "groups");
    for (int g = 0; g < count; g++) {
        warn_of_runs(warnings, &groups[g]);
        warn_of_pairs(warnings, &comparisons[g]);
        warn_of_speed(warnings, &comparisons[g]);
        add_group(items, &comparisons[g], &verdicts[g]);
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
