#include "model/lab/compare/comparison_report.h"

#include <math.h>
#include <stddef.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/json.h"
#include "data/util/table.h"
#include "model/lab/compare/equal_loss.h"

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

static void add_figures(cJSON *object, const struct comparison *c) {
    const struct group_figures *figures = &c->figures;
    double skipped = (double)figures->skipped, steps = (double)figures->steps;
    JSON_NUMBERS(cJSON_AddObjectToObject(object, "skipped"), {"steps", skipped}, {"of", steps},
                 {"share", skipped / steps}, {"in_search", (double)figures->skipped_in_search});
    if (isfinite(figures->scale_first))
        JSON_NUMBERS(cJSON_AddObjectToObject(object, "loss_scale"), {"first", figures->scale_first},
                     {"last", figures->scale_last}, {"smallest", figures->scale_smallest},
                     {"largest", figures->scale_largest}, {"changes", figures->scale_changes});
    else cJSON_AddNullToObject(object, "loss_scale");
    JSON_NUMBERS(object, {"not_finite", (double)figures->not_finite},
                 {"tokens_per_s", figures->tokens_per_s}, {"speed_up", c->speed_up},
                 {"memory_bytes", figures->memory_bytes},
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
    if (isfinite(c->figures.scale_first))
        add_steps(curves, "loss_scale", run, offsetof(struct run_step, loss_scale), 1);
    cJSON *validations = cJSON_AddArrayToObject(curves, "validations");
    for (int i = 0; i < arrlen(run->validations); i++)
        JSON_NUMBERS(json_add_item(validations), {"step", (double)run->validations[i].step},
                     {"loss", run->validations[i].loss},
                     {"seconds", run->validations[i].tokens / speed});
    arrfree(steps);
}

/* ---- the report */

static void add_checks(cJSON *object, const struct verdict *verdict) {
    cJSON *checks = cJSON_AddArrayToObject(object, "checks");
    for (int i = 0; i < CHECKS; i++) {
        const struct check *check = &verdict->checks[i];
        cJSON *item = json_add_item(checks);
        cJSON_AddStringToObject(item, "name", check_name(i));
        cJSON_AddStringToObject(item, "outcome", check_outcome_name(check->outcome));
        JSON_NUMBERS(item, {"value", check->value}, {"limit", check->limit});
        cJSON_AddStringToObject(item, "text", check->text);
        cJSON_AddStringToObject(item, "rule", check->rule);
    }
}

void comparison_add_group(cJSON *groups, const struct comparison *c,
                          const struct verdict *verdict) {
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
    add_checks(object, verdict);
    add_curves(object, c);
}
