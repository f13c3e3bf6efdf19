#include "model/lab/compare/comparison_print.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/printed.h"
#include "model/page/chart.h"
#include "model/page/section.h"

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
                 {"saved", "memory_saving_percent", SHOW_NUMBER, 1, " %", COMPARED}}},
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

static const struct section checks = {
    .title = "Checks",
    .columns = {{"run", "label"}, {"check", "name"}, {"outcome", "outcome"}, {"found", "text"}}};

static const struct section limits = {.title = "Limits",
                                      .columns = {{"check", "name"}, {"passes if", "rule"}}};

/* ---- rows made from the groups of the report */

/* Appends a copy of an object, with the label of its group. */
static cJSON *add_copy(cJSON *rows, const cJSON *object, const cJSON *group) {
    cJSON *row = cJSON_Duplicate(object, true);
    cJSON_AddStringToObject(row, "label", json_text_at(group, "label"));
    cJSON_AddItemToArray(rows, row);
    return row;
}

static void print_noise(const struct page *page, const cJSON *groups) {
    const struct {
        const char *path, *name;
    } shown[] = {{"training_difference", check_name(CHECK_TRAINING_LOSS)},
                 {"validation_difference", check_name(CHECK_VALIDATION_LOSS)},
                 {"curve", check_name(CHECK_CURVE)},
                 {"gradient_norm", check_name(CHECK_NORM)},
                 {"equal_loss.tokens", "tokens to equal loss"},
                 {"equal_loss.speed", "speed at equal loss"}};
    cJSON *rows = cJSON_CreateArray();
    const cJSON *group;
    cJSON_ArrayForEach(group, groups) {
        for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
            const cJSON *difference = json_at(group, shown[i].path);
            const cJSON *real = json_at(difference, "real"); /* null with a single seed */
            if (!cJSON_IsTrue(json_at(group, "compared")) || cJSON_IsNull(real)) continue;
            cJSON *row = add_copy(rows, difference, group);
            cJSON_AddStringToObject(row, "name", shown[i].name);
            cJSON_AddStringToObject(row, "it is", cJSON_IsTrue(real) ? "real" : "noise");
        }
    }
    section_print(page, &noise, rows);
    cJSON_Delete(rows);
}

static void print_checks(const struct page *page, const cJSON *groups) {
    cJSON *rows = cJSON_CreateArray();
    const cJSON *group, *check;
    cJSON_ArrayForEach(group, groups) {
        bool passed = strcmp(json_text_at(group, "verdict"), "reference") == 0;
        for (check = passed ? NULL : json_at(group, "checks")->child; check; check = check->next)
            add_copy(rows, check, group);
    }
    section_print(page, &checks, rows);
    cJSON_Delete(rows);
    section_print(page, &limits, json_at(groups->child, "checks"));
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
static void print_profile(const struct page *page, const cJSON *groups) {
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
    if (most) page_heading(page, "Where the time goes");
    if (most) page_table(page, &table);
    else table_free(&table);
}

static void print_configs(const struct page *page, const struct comparison_report *report) {
    struct table table = {0};
    bool only_precision = true;
    table_column(&table, "config", TABLE_LEFT);
    for (int g = 0; g < arrlen(report->groups); g++)
        table_column(&table, report->groups[g].label, TABLE_LEFT);
    for (int i = 0; i < arrlen(report->differences); i++) {
        const struct config_difference *difference = &report->differences[i];
        only_precision = only_precision && difference->weight == CONFIG_WEIGHT_EXPECTED;
        table_cell(&table, "%s", difference->key);
        for (int g = 0; g < arrlen(difference->values); g++)
            table_cell(&table, "%s", difference->values[g] ? difference->values[g] : "-");
    }
    if (table_rows(&table) == 0)
        page_paragraph(page, "The configs are the same (differences such as names do not affect "
                             "results).");
    else if (only_precision)
        page_paragraph(page, "The configs differ only in precision (other differences do not "
                             "affect results).");
    else {
        page_paragraph(page, "The configs differ in:");
        page_table(page, &table);
        return;
    }
    table_free(&table);
}

/* ---- head of the report: runs and verdicts */

static void begin(struct page *page, const struct comparison_report *report, enum page_form form) {
    int steps[2] = {INT_MAX, 0}, seeds[2] = {INT_MAX, 0}; /* fewest, most */
    struct printed labels;
    char *summary;
    if (printed_open(&labels)) end_out_of_memory();
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct comparison *c = &report->comparisons[g];
        int pairs = (int)arrlen(c->pairs);
        fprintf(labels.out, "%s%s", g == 0 ? "" : ", ", report->groups[g].label);
        if (g == report->reference) continue; /* its comparison with itself has all its steps */
        if (c->steps < steps[0]) steps[0] = c->steps;
        if (c->steps > steps[1]) steps[1] = c->steps;
        if (pairs < seeds[0]) seeds[0] = pairs;
        if (pairs > seeds[1]) seeds[1] = pairs;
    }
    if (printed_close(&labels) ||
        asprintf(&summary, "%s%d step%s, %s%d seed%s, against %s",
                 steps[0] < steps[1] ? "at least " : "", steps[0], steps[0] == 1 ? "" : "s",
                 seeds[0] < seeds[1] ? "at least " : "", seeds[0], seeds[0] == 1 ? "" : "s",
                 report->groups[report->reference].label) < 0)
        end_out_of_memory();
    page_begin(page, form, labels.text, summary);
    free(summary);
    free(labels.text);
}

static void print_passed(const struct page *page, const char *label, const struct comparison *c,
                         const struct verdict *verdict) {
    char head[300], validation[60] = "", speed[60] = "", memory[60] = "";
    if (verdict->rank)
        snprintf(head, sizeof head, "%s: rank %d of %d", label, verdict->rank, verdict->ranked);
    else snprintf(head, sizeof head, "%s: pass", label);
    if (c->validation_step >= 0)
        snprintf(validation, sizeof validation, ", validation loss %+.3f %%", c->validation.mean);
    if (isfinite(c->speed_up)) snprintf(speed, sizeof speed, ", %.2f times as fast", c->speed_up);
    if (isfinite(c->memory_saving))
        snprintf(memory, sizeof memory, ", %.1f %% less memory", c->memory_saving);
    page_note(page, verdict->rank > 1 ? PAGE_NEUTRAL : PAGE_GOOD, head,
              "training loss %+.3f %%%s%s%s", c->training.mean, validation, speed, memory);
}

/* Prints the checks that failed or are within noise, the groups that passed, and advice to use more
 * seeds if a failure of a single seed may be noise. */
static void print_verdicts(const struct page *page, const struct comparison_report *report) {
    bool doubtful = false;
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct comparison *c = &report->comparisons[g];
        const struct verdict *verdict = &report->verdicts[g];
        const char *label = report->groups[g].label;
        for (int i = 0; i < CHECKS; i++) {
            const struct check *check = &verdict->checks[i];
            bool failed = check->outcome == CHECK_FAIL;
            char head[300];
            if (!failed && check->outcome != CHECK_NOISE) continue;
            snprintf(head, sizeof head, "%s: %s, %s", label, failed ? "FAIL" : "noise",
                     check_name(i));
            page_note(page, failed ? PAGE_BAD : PAGE_NEUTRAL, head, "%s; limit: %s", check->text,
                      check->rule);
            doubtful =
                doubtful || (failed && i >= CHECK_TRAINING_LOSS && i <= CHECK_CORRELATION &&
                             isfinite(check->value) && c->norms_zero == 0 && arrlen(c->pairs) == 1);
        }
        if (g != report->reference && verdict->pass) print_passed(page, label, c, verdict);
    }
    if (doubtful)
        page_paragraph(page, "One seed does not tell such a difference from noise: small batches "
                             "and long runs let right runs drift apart too. Three or more seeds "
                             "do.");
}

static void print_losses(const struct page *page, const struct comparison_report *report,
                         const cJSON *groups) {
    const struct comparison *c = &report->comparisons[report->reference];
    char *note;
    for (int g = 0; g < arrlen(report->groups); g++) /* the shortest comparison */
        if (report->comparisons[g].steps < c->steps) c = &report->comparisons[g];
    if (asprintf(&note,
                 "The training loss is the mean of the last %d steps; the curve is that of means "
                 "over %d steps, where it is farthest from the reference after step %.0f. Runs of "
                 "one seed begin with the same weights and read the same batches.",
                 c->window, c->window, c->settled) < 0)
        end_out_of_memory();
    section_print(page, &losses, groups);
    page_paragraph(page, note);
    free(note);
}

static void print_equal_losses(const struct page *page, const struct comparison_report *report) {
    bool any = false;
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct equal_loss *equal = &report->equal_losses[g];
        if (g == report->reference) continue;
        page_note(page, PAGE_NEUTRAL, report->groups[g].label, "%s", equal->text);
        any = any || isfinite(equal->loss);
    }
    if (any)
        page_paragraph(page,
                       "The equal loss is the higher of the lowest validation losses of two runs "
                       "of a seed; tokens and time to it are interpolated between validations. "
                       "+- is the margin over the seeds.");
}

static void print_charts(const struct page *page, const struct comparison_report *report) {
    bool seeds = arrlen(report->comparisons[report->reference].pairs) > 1;
    if (page->form == PAGE_MARKDOWN) return;
    page_heading(page, "Curves");
    if (chart_problem()) page_paragraph(page, chart_problem());
    comparison_charts_print(page, report);
    if (seeds && page->form == PAGE_HTML)
        page_paragraph(page, "Training losses are means over the seeds; the other charts show the "
                             "first seed.");
}

static void print_report(FILE *out, const struct comparison_report *report, const cJSON *root,
                         enum page_form form) {
    const cJSON *groups = json_at(root, "groups");
    struct page page;
    begin(&page, report, form);
    print_configs(&page, report);
    for (int i = 0; i < arrlen(report->warnings); i++)
        page_note(&page, PAGE_NEUTRAL, "warning", "%s", report->warnings[i]);
    print_losses(&page, report, groups);
    print_verdicts(&page, report);
    print_charts(&page, report);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        section_print(&page, &figures[i], groups);
    print_equal_losses(&page, report);
    print_profile(&page, groups);
    print_noise(&page, groups);
    if (form != PAGE_TEXT) {
        print_checks(&page, groups);
        page_heading(&page, "Commands");
        if (report->made_by) page_code(&page, report->made_by);
        page_code(&page, report->command);
    }
    page_end(&page, out);
}

void comparison_print(FILE *out, const void *report, enum page_form form) {
    cJSON *root = comparison_json(report);
    if (form == PAGE_JSON) page_print_json(out, root);
    else print_report(out, report, root, form);
    cJSON_Delete(root);
}
