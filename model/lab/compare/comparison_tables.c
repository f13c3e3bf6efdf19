#include "model/lab/compare/comparison_tables.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/printed.h"

#define MIB (1024.0 * 1024)

/* The tolerance is for metrics.jsonl, whose nine digits round large powers of two. */
const char *scale_text(char text[SCALE_TEXT_MAX], double scale) {
    double exponent = round(log2(scale));
    if (isnan(scale)) snprintf(text, SCALE_TEXT_MAX, "-");
    else if (fabs(scale / exp2(exponent) - 1) < 1e-7)
        snprintf(text, SCALE_TEXT_MAX, "2^%.0f", exponent);
    else snprintf(text, SCALE_TEXT_MAX, "%g", scale);
    return text;
}

const struct run_record *profiled_run(const struct run_group *group) {
    for (int i = 0; i < arrlen(group->runs); i++)
        if (group->runs[i]->profile) return group->runs[i];
    return NULL;
}

/* ---- tables with one row per group and one column per figure */

enum unit { UNIT_NONE, UNIT_PERCENT, UNIT_TIMES, UNIT_BYTES, UNIT_SCALE, UNIT_MS };

/* Adds a number with the given decimals, or a dash if it is not finite. */
static void number_cell(struct table *table, double value, int decimals, enum unit unit) {
    static const char *const units[] = {"", " %", " x", " MiB", "", " ms"};
    char text[SCALE_TEXT_MAX];
    if (unit == UNIT_SCALE) table_cell(table, "%s", scale_text(text, value));
    else if (!isfinite(value)) table_cell(table, "-");
    else if (unit == UNIT_BYTES && value >= 1024 * MIB)
        table_cell(table, "%.2f GiB", value / 1024 / MIB);
    else
        table_cell(table, "%.*f%s", decimals, unit == UNIT_BYTES ? value / MIB : value,
                   units[unit]);
}

static void skipped_cell(struct table *table, const struct group_figures *figures) {
    if (figures->skipped)
        table_cell(table, "%" PRId64 " (%.3g %%)", figures->skipped,
                   100.0 * (double)figures->skipped / (double)figures->steps);
    else table_cell(table, "0");
}

enum kind {
    OF_ALL,
    OF_OTHERS,  /* figure of other groups; a dash for the reference */
    DIFFERENCE, /* signed difference of other groups in %; empty for the reference */
    VERDICT,
    SKIPPED
};

struct column {
    const char *heading;
    size_t figure; /* offset of a double in struct comparison */
    int decimals;
    enum unit unit;
    enum kind kind;
};

static void figure_cell(struct table *table, const struct column *column,
                        const struct comparison_report *report, int g) {
    const struct comparison *c = &report->comparisons[g];
    double value = *(const double *)((const char *)c + column->figure);
    bool other = g != report->reference;
    switch (column->kind) {
    case VERDICT: table_cell(table, "%s", comparison_report_word(report, g)); break;
    case SKIPPED: skipped_cell(table, &c->figures); break;
    case OF_ALL: number_cell(table, value, column->decimals, column->unit); break;
    case OF_OTHERS: number_cell(table, other ? value : NAN, column->decimals, column->unit); break;
    case DIFFERENCE:
        if (other && isfinite(value)) table_cell(table, "%+.3f %%", value);
        else table_cell(table, "%s", other ? "-" : "");
        break;
    }
}

/* ---- other tables */

static void noise_row(struct table *table, const char *label, const char *figure,
                      const struct difference *d) {
    if (d->count < 2 || isnan(d->mean)) return;
    table_cell(table, "%s", label);
    table_cell(table, "%s", figure);
    table_cell(table, "%d", d->count);
    table_cell(table, "%+.3f %%", d->mean);
    table_cell(table, "%.3f", d->scatter);
    table_cell(table, "%.3f", d->noise);
    table_cell(table, "%.3f", d->margin);
    table_cell(table, "%s", d->real ? "real" : "noise");
}

static struct table noise_table(const struct comparison_report *report) {
    struct table table = {0};
    table_columns(&table, TABLE_LEFT, "run", "difference of", NULL);
    table_columns(&table, TABLE_RIGHT, "seeds", "mean", "scatter", "noise", "margin", NULL);
    table_column(&table, "it is", TABLE_LEFT);
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct comparison *c = &report->comparisons[g];
        const char *label = report->groups[g].label;
        if (g == report->reference) continue;
        noise_row(&table, label, check_name(CHECK_TRAINING_LOSS), &c->training);
        noise_row(&table, label, check_name(CHECK_VALIDATION_LOSS), &c->validation);
        noise_row(&table, label, check_name(CHECK_CURVE), &c->curve);
        noise_row(&table, label, check_name(CHECK_NORM), &c->norm);
    }
    return table;
}

/* Returns the milliseconds of an operation (whole 0), of the step (1), or of its matmuls alone (2).
 */
static double part_ms(const struct run_record *run, const char *name, int whole) {
    if (whole) return !run ? NAN : whole == 1 ? run->profile_step_ms : run->profile_products_ms;
    for (int i = 0; run && i < arrlen(run->profile); i++)
        if (strcmp(run->profile[i].name, name) == 0) return run->profile[i].ms;
    return NAN;
}

static void profile_row(struct table *table, const struct comparison_report *report,
                        const char *name, int whole) {
    double most = whole;
    for (int g = 0; g < arrlen(report->groups); g++)
        most = fmax(most, part_ms(profiled_run(&report->groups[g]), name, whole));
    if (most < 0.05) return; /* left out in ./train --profile too */
    table_cell(table, "%s", name);
    for (int g = 0; g < arrlen(report->groups); g++)
        number_cell(table, part_ms(profiled_run(&report->groups[g]), name, whole), 1, UNIT_MS);
}

/* The rows are the operations of the run that has the most; for one model it has those of all. */
static struct table profile_table(const struct comparison_report *report) {
    const struct run_record *named = NULL;
    struct table table = {0};
    table_column(&table, "of a step", TABLE_LEFT);
    for (int g = 0; g < arrlen(report->groups); g++) {
        table_column(&table, report->groups[g].label, TABLE_RIGHT);
        const struct run_record *run = profiled_run(&report->groups[g]);
        if (run && (!named || arrlen(run->profile) > arrlen(named->profile))) named = run;
    }
    if (!named) return table;
    for (int i = 0; i < arrlen(named->profile); i++)
        profile_row(&table, report, named->profile[i].name, 0);
    profile_row(&table, report, "whole step", 1);
    profile_row(&table, report, "matmuls alone", 2);
    return table;
}

static struct table checks_table(const struct comparison_report *report) {
    struct table table = {0};
    table_columns(&table, TABLE_LEFT, "run", "check", "outcome", "found", NULL);
    for (int g = 0; g < arrlen(report->groups); g++) {
        if (g == report->reference && report->verdicts[g].pass) continue;
        for (int i = 0; i < CHECKS; i++) {
            const struct check *check = &report->verdicts[g].checks[i];
            table_cell(&table, "%s", report->groups[g].label);
            table_cell(&table, "%s", check_name(i));
            table_cell(&table, "%s", check_outcome_name(check->outcome));
            table_cell(&table, "%s", check->text);
        }
    }
    return table;
}

static struct table limits_table(const struct comparison_report *report) {
    struct table table = {0};
    table_columns(&table, TABLE_LEFT, "check", "passes if", NULL);
    for (int i = 0; i < CHECKS; i++) {
        table_cell(&table, "%s", check_name(i));
        table_cell(&table, "%s", report->verdicts[report->reference].checks[i].rule);
    }
    return table;
}

static bool only_precision(const struct comparison_report *report) {
    for (int i = 0; i < arrlen(report->differences); i++)
        if (report->differences[i].weight != CONFIG_WEIGHT_EXPECTED) return false;
    return true;
}

struct table comparison_table_configs(const struct comparison_report *report) {
    struct table table = {0};
    table_column(&table, "config", TABLE_LEFT);
    for (int g = 0; g < arrlen(report->groups); g++)
        table_column(&table, report->groups[g].label, TABLE_LEFT);
    for (int i = 0; i < arrlen(report->differences) && !only_precision(report); i++) {
        const struct config_difference *difference = &report->differences[i];
        table_cell(&table, "%s", difference->key);
        for (int g = 0; g < arrlen(difference->values); g++)
            table_cell(&table, "%s", difference->values[g] ? difference->values[g] : "-");
    }
    return table;
}

const char *comparison_config_sentence(const struct comparison_report *report) {
    if (arrlen(report->differences) == 0)
        return "The configs are the same (differences such as names do not affect results).";
    if (only_precision(report))
        return "The configs differ only in precision (other differences do not affect results).";
    return "The configs differ in:";
}

/* ---- sentences */

const char *comparison_extent(char text[COMPARISON_EXTENT_MAX],
                              const struct comparison_report *report) {
    int steps[2] = {INT_MAX, 0}, seeds[2] = {INT_MAX, 0}; /* fewest, most */
    for (int g = 0; g < arrlen(report->comparisons); g++) {
        const struct comparison *c = &report->comparisons[g];
        int pairs = (int)arrlen(c->pairs);
        if (g == report->reference) continue; /* its comparison with itself has all its steps */
        if (c->steps < steps[0]) steps[0] = c->steps;
        if (c->steps > steps[1]) steps[1] = c->steps;
        if (pairs < seeds[0]) seeds[0] = pairs;
        if (pairs > seeds[1]) seeds[1] = pairs;
    }
    snprintf(text, COMPARISON_EXTENT_MAX, "%s%d step%s, %s%d seed%s",
             steps[0] < steps[1] ? "at least " : "", steps[0], steps[0] == 1 ? "" : "s",
             seeds[0] < seeds[1] ? "at least " : "", seeds[0], seeds[0] == 1 ? "" : "s");
    return text;
}

static void losses_note(FILE *out, const struct comparison_report *report) {
    const struct comparison *c = &report->comparisons[report->reference];
    for (int g = 0; g < arrlen(report->groups); g++) /* the shortest comparison */
        if (report->comparisons[g].steps < c->steps) c = &report->comparisons[g];
    fprintf(out,
            "The training loss is the mean of the last %d steps; the curve is that of means over "
            "%d steps, where it is farthest from the reference after step %.0f. Runs of one seed "
            "begin with the same weights and read the same batches.",
            c->window, c->window, c->settled);
}

static void noise_note(FILE *out, const struct comparison_report *report) {
    (void)report;
    fprintf(out,
            "Scatter: standard deviation of the differences over the n seeds. Noise: that of "
            "the reference itself. A difference is real beyond its margin, the smaller of t / "
            "sqrt(n) scatters (95 %%, Student's t) and 2 sqrt(2 / n) noises. With fewer than 4 "
            "seeds both are rough estimates.");
}

/* ---- sections */

#define FIGURE(field) offsetof(struct comparison, field)

static const struct part {
    const char *heading;
    struct table (*table)(const struct comparison_report *report); /* NULL: the columns */
    void (*note)(FILE *out, const struct comparison_report *report);
    const char *first; /* heading of the first column, which holds the labels */
    struct column columns[7];
} parts[COMPARISON_PARTS] = {
    [COMPARISON_LOSSES] = {"Losses",
                           NULL,
                           losses_note,
                           "run",
                           {{"verdict", .kind = VERDICT},
                            {"train loss", FIGURE(training_loss[COMPARE_OTHER]), 4},
                            {"difference", FIGURE(training.mean), .kind = DIFFERENCE},
                            {"val loss", FIGURE(validation_loss[COMPARE_OTHER]), 4},
                            {"difference", FIGURE(validation.mean), .kind = DIFFERENCE},
                            {"curve", FIGURE(curve.mean), .kind = DIFFERENCE}}},
    [COMPARISON_GRADIENTS] = {"Gradient norms",
                              NULL,
                              NULL,
                              "gradient norms",
                              {{"median ratio", FIGURE(norm_median), 4},
                               {"mean ratio", FIGURE(norm_ratio), 4},
                               {"correlation", FIGURE(norm_correlation), 4},
                               {"smoothed", FIGURE(norm_smoothed_correlation), 4}}},
    [COMPARISON_SCALE] = {"Loss scale",
                          NULL,
                          NULL,
                          "loss scale",
                          {{"steps skipped", .kind = SKIPPED},
                           {"first", FIGURE(figures.scale_first), 0, UNIT_SCALE},
                           {"last", FIGURE(figures.scale_last), 0, UNIT_SCALE},
                           {"least", FIGURE(figures.scale_smallest), 0, UNIT_SCALE},
                           {"most", FIGURE(figures.scale_largest), 0, UNIT_SCALE},
                           {"changes", FIGURE(figures.scale_changes), 0}}},
    [COMPARISON_SPEED] = {"Speed and memory",
                          NULL,
                          NULL,
                          "run",
                          {{"tokens/s", FIGURE(figures.tokens_per_s), 0},
                           {"speed", FIGURE(speed_up), 2, UNIT_TIMES, OF_OTHERS},
                           {"peak memory", FIGURE(figures.memory_bytes), 1, UNIT_BYTES},
                           {"saved", FIGURE(memory_saving), 1, UNIT_PERCENT, OF_OTHERS}}},
    [COMPARISON_PROFILE] = {"Where the time goes", profile_table},
    [COMPARISON_NOISE] = {"Noise", noise_table, noise_note},
    [COMPARISON_CHECKS] = {"Checks", checks_table},
    [COMPARISON_LIMITS] = {"Limits", limits_table},
};

static struct table figures_table(const struct part *part, const struct comparison_report *report) {
    struct table table = {0};
    table_column(&table, part->first, TABLE_LEFT);
    for (const struct column *column = part->columns; column->heading; column++)
        table_column(&table, column->heading, column->kind == VERDICT ? TABLE_LEFT : TABLE_RIGHT);
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct group_figures *figures = &report->comparisons[g].figures;
        if (part == &parts[COMPARISON_GRADIENTS] && g == report->reference) continue;
        if (part == &parts[COMPARISON_SCALE] && isnan(figures->scale_first) && !figures->skipped)
            continue;
        table_cell(&table, "%s", report->groups[g].label);
        for (const struct column *column = part->columns; column->heading; column++)
            figure_cell(&table, column, report, g);
    }
    return table;
}

struct comparison_section comparison_section_make(const struct comparison_report *report,
                                                  enum comparison_part number) {
    const struct part *part = &parts[number];
    struct comparison_section section = {.heading = part->heading};
    struct printed note;
    section.table = part->table ? part->table(report) : figures_table(part, report);
    if (part->note && table_rows(&section.table) > 0) {
        if (printed_open(&note)) abort();
        part->note(note.out, report);
        if (printed_close(&note)) abort();
        section.note = note.text;
    }
    return section;
}
