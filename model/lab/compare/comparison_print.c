#include "model/lab/compare/comparison_report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/json.h"
#include "data/util/printed.h"
#include "data/util/table.h"

#define COMPARED .needs = "compared"

static const struct section losses = {
    .title = "Losses",
    .columns = {{"run", "label"},
                {"verdict", "verdict"},
                {"train loss", "training_loss", SHOW_NUMBER, 4},
                {"differs", "training_difference.percent", SHOW_CHANGE, 3, " %", COMPARED},
                {"val loss", "validation_loss", SHOW_NUMBER, 4},
                {"differs", "validation_difference.percent", SHOW_CHANGE, 3, " %", COMPARED},
                {"curve", "curve.percent", SHOW_CHANGE, 3, " %", COMPARED}}};

/* Sections with a row per group. */
static const struct section figures[] = {
    {.title = "Gradient norms",
     .columns = {{"run", "label"},
                 {"median ratio", "gradient_norm.median_ratio", SHOW_NUMBER, 4, "", COMPARED},
                 {"mean ratio", "gradient_norm.geometric_mean_ratio", SHOW_NUMBER, 4, "", COMPARED},
                 {"correlation", "gradient_norm.correlation", SHOW_NUMBER, 4, "", COMPARED},
                 {"smoothed", "gradient_norm.smoothed_correlation", SHOW_NUMBER, 4, "", COMPARED}}},
    {.title = "Loss scale",
     .columns = {{"run", "label"},
                 {"steps skipped", "skipped.steps", SHOW_NUMBER, .needs = "skipped.steps"},
                 {"share", "skipped.share", SHOW_SHARE, .needs = "skipped.steps"},
                 {"first", "loss_scale.first", SHOW_SCALE},
                 {"last", "loss_scale.last", SHOW_SCALE},
                 {"least", "loss_scale.smallest", SHOW_SCALE},
                 {"most", "loss_scale.largest", SHOW_SCALE},
                 {"changes", "loss_scale.changes", SHOW_NUMBER}}},
    {.title = "Speed and memory",
     .columns = {{"run", "label"},
                 {"tokens/s", "tokens_per_s", SHOW_NUMBER},
                 {"speed", "speed_up", SHOW_NUMBER, 2, " x", COMPARED},
                 {"at equal loss", "equal_loss.speed_up", SHOW_NUMBER, 2, " x", COMPARED},
                 {"tokens to it", "equal_loss.tokens.percent", SHOW_CHANGE, 1, " %", COMPARED},
                 {"peak memory", "memory_bytes", SHOW_BYTES},
                 {"saved", "memory_saving_percent", SHOW_NUMBER, 1, " %", COMPARED},
                 {"half at", "tokens_per_s_low", SHOW_NUMBER},
                 {"to", "tokens_per_s_high", SHOW_NUMBER}}},
};

static const struct section noise = {
    .title = "Noise",
    .note = "Scatter: standard deviation of the differences over the n seeds. Noise: that of the "
            "reference itself. A difference is real beyond its margin, the smaller of t / sqrt(n) "
            "scatters (95 %, Student's t) and 2 sqrt(2 / n) noises. With fewer than 4 seeds both "
            "are rough estimates. At equal loss only the first applies.",
    .columns = {{"run", "label"},
                {"difference of", "name"},
                {"seeds", "pairs", SHOW_NUMBER},
                {"mean", "percent", SHOW_CHANGE, 3, " %"},
                {"scatter", "scatter", SHOW_NUMBER, 3},
                {"noise", "noise", SHOW_NUMBER, 3},
                {"margin", "margin", SHOW_NUMBER, 3},
                {"it is", "it is"}}};

/* True for all groups but the reference. */
static bool is_compared(const cJSON *group) {
    return cJSON_IsTrue(json_at(group, "compared"));
}

static void print_noise(FILE *out, const cJSON *groups) {
    static const struct {
        const char *path, *name;
    } shown[] = {{"training_difference", "training loss"},
                 {"validation_difference", "validation loss"},
                 {"curve", "loss curve"},
                 {"gradient_norm", "gradient norms"},
                 {"equal_loss.tokens", "tokens to equal loss"},
                 {"equal_loss.speed", "speed at equal loss"}};
    cJSON *rows = cJSON_CreateArray();
    const cJSON *group;
    cJSON_ArrayForEach(group, groups) {
        for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
            const cJSON *difference = json_at(group, shown[i].path);
            const cJSON *real = json_at(difference, "real"); /* null with a single seed */
            if (!is_compared(group) || cJSON_IsNull(real)) continue;
            cJSON *row = cJSON_Duplicate(difference, true);
            cJSON_AddStringToObject(row, "label", json_text_at(group, "label"));
            cJSON_AddStringToObject(row, "name", shown[i].name);
            cJSON_AddStringToObject(row, "it is", cJSON_IsTrue(real) ? "real" : "noise");
            cJSON_AddItemToArray(rows, row);
        }
    }
    section_print(out, &noise, rows);
    cJSON_Delete(rows);
}

/* ---- tables with a column per group */

/* Adds the milliseconds of a part of a step in each group, unless all are small. */
static void profile_row(struct table *table, const char *name, const cJSON *groups,
                        const char *object, const char *key) {
    double most = 0;
    const cJSON *group;
    cJSON_ArrayForEach(group, groups) {
        most = fmax(most, json_number_at(json_member(json_at(group, object), key), ""));
    }
    if (most < 0.05) return; /* left out in ./train --profile too */
    table_cell(table, "%s", name);
    cJSON_ArrayForEach(group, groups) {
        double ms = json_number_at(json_member(json_at(group, object), key), "");
        if (isnan(ms)) table_cell(table, "-");
        else table_cell(table, "%.1f ms", ms);
    }
}

/* The rows are the operations of the run that has the most, then those of others. */
static void print_profile(FILE *out, const cJSON *groups) {
    const cJSON *group, *part, *most = NULL;
    struct table table = {0};
    table_column(&table, "of a step", TABLE_LEFT);
    cJSON_ArrayForEach(group, groups) {
        const cJSON *own = json_at(group, "profile.operations");
        table_column(&table, json_text_at(group, "label"), TABLE_RIGHT);
        if (cJSON_GetArraySize(own) > cJSON_GetArraySize(most)) most = own;
    }
    cJSON *operations = most ? cJSON_Duplicate(most, true) : cJSON_CreateObject();
    cJSON_ArrayForEach(group, groups) {
        cJSON_ArrayForEach(part, json_at(group, "profile.operations")) {
            if (!json_member(operations, part->string))
                cJSON_AddNullToObject(operations, part->string);
        }
    }
    cJSON_ArrayForEach(part, operations) {
        profile_row(&table, part->string, groups, "profile.operations", part->string);
    }
    cJSON_Delete(operations);
    profile_row(&table, "whole step", groups, "profile", "step_ms");
    profile_row(&table, "matmuls alone", groups, "profile", "products_ms");
    if (most) {
        text_heading(out, "Where the time goes");
        fputc('\n', out);
        table_print(out, &table);
    } else table_free(&table);
}

static void print_configs(FILE *out, const cJSON *report) {
    struct table table = {0};
    bool only_precision = true;
    const cJSON *group, *difference, *value;
    table_column(&table, "config", TABLE_LEFT);
    cJSON_ArrayForEach(group, json_at(report, "groups")) {
        table_column(&table, json_text_at(group, "label"), TABLE_LEFT);
    }
    cJSON_ArrayForEach(difference, json_at(report, "config_differences")) {
        only_precision =
            only_precision && strcmp(json_text_at(difference, "weight"), "expected") == 0;
        table_cell(&table, "%s", json_text_at(difference, "key"));
        cJSON_ArrayForEach(value, json_at(difference, "values")) {
            char *text = cJSON_PrintUnformatted(value);
            table_cell(&table, "%s", cJSON_IsNull(value) || !text ? "-" : text);
            cJSON_free(text);
        }
    }
    bool shown = table_rows(&table) > 0 && !only_precision;
    text_print(out, 2, "%s",
               shown                    ? "The configs differ in:"
               : table_rows(&table) > 0 ? "The configs differ only in precision (other differences "
                                          "do not affect results)."
                                        : "The configs are the same (differences such as names do "
                                          "not affect results).");
    if (shown) {
        fputc('\n', out);
        table_print(out, &table);
    } else table_free(&table);
}

/* ---- head of the report: runs and verdicts */

/* Prints the labels, and the fewest steps and seeds that a group has in common with the
 * reference. */
static void print_title(FILE *out, const cJSON *report) {
    double steps[2] = {INFINITY, 0}, seeds[2] = {INFINITY, 0}; /* fewest, most */
    struct printed labels;
    const cJSON *group, *first = json_at(report, "groups")->child;
    if (printed_open(&labels)) end_out_of_memory();
    cJSON_ArrayForEach(group, json_at(report, "groups")) {
        double common = json_number_at(group, "steps");
        double pairs = json_number_at(group, "training_difference.pairs");
        fprintf(labels.out, "%s%s", group == first ? "" : ", ", json_text_at(group, "label"));
        if (!is_compared(group)) continue; /* its comparison with itself has all its steps */
        steps[0] = fmin(steps[0], common), steps[1] = fmax(steps[1], common);
        seeds[0] = fmin(seeds[0], pairs), seeds[1] = fmax(seeds[1], pairs);
    }
    if (printed_close(&labels)) end_out_of_memory();
    text_print(out, 2, "%s: %s%.0f step%s, %s%.0f seed%s, against %s", labels.text,
               steps[0] < steps[1] ? "at least " : "", steps[0], PLURAL(steps[0]),
               seeds[0] < seeds[1] ? "at least " : "", seeds[0], PLURAL(seeds[0]),
               json_text_at(report, "reference"));
    free(labels.text);
}

static void print_passed(FILE *out, const cJSON *group) {
    char validation[80] = "", speed[60] = "", memory[60] = "";
    double faster = json_number_at(group, "speed_up");
    double saved = json_number_at(group, "memory_saving_percent");
    if (isfinite(json_number_at(group, "validation_step")))
        snprintf(validation, sizeof validation, ", validation loss %s %%",
                 decimal(json_number_at(group, "validation_difference.percent"), 3, true).text);
    if (isfinite(faster)) snprintf(speed, sizeof speed, ", %.2f times as fast", faster);
    if (isfinite(saved))
        snprintf(memory, sizeof memory, ", %.1f %% %s memory", fabs(saved),
                 saved < 0 ? "more" : "less");
    text_print(out, 4, "%s: %s: training loss %s %%%s%s%s", json_text_at(group, "label"),
               json_text_at(group, "verdict"),
               decimal(json_number_at(group, "training_difference.percent"), 3, true).text,
               validation, speed, memory);
}

/* True for a failure of a single seed that may be noise: of a finite figure of losses or norms. */
static bool is_doubtful(const cJSON *group, int check, const cJSON *item) {
    return check >= CHECK_TRAINING_LOSS && check <= CHECK_CORRELATION &&
           isfinite(json_number_at(item, "value")) &&
           json_number_at(group, "gradient_norm.zero") == 0 &&
           json_number_at(group, "training_difference.pairs") == 1;
}

/* Prints the checks that failed or are within noise, the groups that passed, and advice to use more
 * seeds if a failure may be noise. */
static void print_verdicts(FILE *out, const cJSON *groups) {
    bool doubtful = false;
    const cJSON *group, *check;
    cJSON_ArrayForEach(group, groups) {
        int id = 0;
        cJSON_ArrayForEach(check, json_at(group, "checks")) {
            const char *outcome = json_text_at(check, "outcome");
            bool failed = strcmp(outcome, "fail") == 0, better = strcmp(outcome, "better") == 0;
            if (failed || better || strcmp(outcome, "noise") == 0)
                text_print(out, 4, "%s: %s, %s: %s; limit: %s", json_text_at(group, "label"),
                           failed ? "FAIL" : outcome, json_text_at(check, "name"),
                           json_text_at(check, "text"), json_text_at(check, "rule"));
            doubtful = doubtful || (failed && is_doubtful(group, id, check));
            id++;
        }
        if (is_compared(group) && strcmp(json_text_at(group, "verdict"), "fail") != 0)
            print_passed(out, group);
    }
    if (doubtful)
        text_print(out, 2,
                   "One seed does not tell such a difference from noise: small batches and long "
                   "runs let right runs drift apart too. Three or more seeds do.");
}

static void print_losses(FILE *out, const cJSON *groups) {
    const cJSON *group, *shortest = NULL, *reference = NULL;
    cJSON_ArrayForEach(group, groups) {
        if (!is_compared(group)) reference = group;
    }
    shortest = reference;
    cJSON_ArrayForEach(group, groups) {
        if (json_number_at(group, "steps") < json_number_at(shortest, "steps")) shortest = group;
    }
    section_print(out, &losses, groups);
    text_print(out, 2,
               "The training loss is the mean of the last %.0f steps; the curve is that of means "
               "over %.0f steps, where it is farthest from the reference after step %.0f. Runs of "
               "one seed begin with the same weights and read the same batches.",
               json_number_at(shortest, "window"), json_number_at(shortest, "window"),
               json_number_at(shortest, "settled_after"));
}

static void print_equal_losses(FILE *out, const cJSON *groups) {
    bool any = false;
    const cJSON *group;
    cJSON_ArrayForEach(group, groups) {
        if (!is_compared(group)) continue;
        text_print(out, 4, "%s: %s", json_text_at(group, "label"),
                   json_text_at(group, "equal_loss.text"));
        any = any || isfinite(json_number_at(group, "equal_loss.validation_loss"));
    }
    if (any)
        text_print(out, 2,
                   "The equal loss is the higher of the lowest validation losses of two runs of a "
                   "seed; tokens and time to it are interpolated between validations. +- is the "
                   "margin over the seeds.");
}

void comparison_print(FILE *out, const cJSON *report) {
    const cJSON *groups = json_at(report, "groups"), *warning;
    print_title(out, report);
    print_configs(out, report);
    cJSON_ArrayForEach(warning, json_at(report, "warnings")) {
        text_print(out, 4, "warning: %s", warning->valuestring);
    }
    print_losses(out, groups);
    print_verdicts(out, groups);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        section_print(out, &figures[i], groups);
    print_equal_losses(out, groups);
    print_profile(out, groups);
    print_noise(out, groups);
}
