#include "model/lab/compare/comparison_tables.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/base/printed.h"

#define GIB (1024.0 * 1024 * 1024)
#define MIB (1024.0 * 1024)

/* metrics.jsonl has nine digits, so that a large power of two is not quite one. */
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

/* A number with its format, or a dash. */
#define NUMBER_CELL(table, format, value)                        \
    do {                                                         \
        if (isfinite(value)) table_cell((table), format, value); \
        else table_cell((table), "-");                           \
    } while (0)

static void percent_cell(struct table *table, const struct comparison_report *report, int group,
                         double percent) {
    if (group == report->reference) table_cell(table, "%s", "");
    else NUMBER_CELL(table, "%+.3f %%", percent);
}

static struct table losses_table(const struct comparison_report *report) {
    struct table table = {0};
    table_columns(&table, TABLE_LEFT, "run", "verdict", NULL);
    table_columns(&table, TABLE_RIGHT, "train loss", "difference", "val loss", "difference",
                  "curve", NULL);
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct comparison *c = &report->comparisons[g];
        table_cell(&table, "%s", report->groups[g].label);
        table_cell(&table, "%s", comparison_report_word(report, g));
        NUMBER_CELL(&table, "%.4f", c->training_loss[COMPARE_OTHER]);
        percent_cell(&table, report, g, c->training.mean);
        NUMBER_CELL(&table, "%.4f", c->validation_loss[COMPARE_OTHER]);
        percent_cell(&table, report, g, c->validation.mean);
        percent_cell(&table, report, g, c->curve.mean);
    }
    return table;
}

static struct table gradients_table(const struct comparison_report *report) {
    struct table table = {0};
    table_column(&table, "gradient norms", TABLE_LEFT);
    table_columns(&table, TABLE_RIGHT, "median ratio", "mean ratio", "correlation", "smoothed",
                  NULL);
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct comparison *c = &report->comparisons[g];
        if (g == report->reference) continue;
        table_cell(&table, "%s", report->groups[g].label);
        NUMBER_CELL(&table, "%.4f", 1 + c->norm.mean / 100);
        NUMBER_CELL(&table, "%.4f", c->norm_ratio);
        NUMBER_CELL(&table, "%.4f", c->norm_correlation);
        NUMBER_CELL(&table, "%.4f", c->norm_smoothed_correlation);
    }
    return table;
}

static void skipped_cell(struct table *table, const struct group_figures *figures) {
    if (figures->skipped)
        table_cell(table, "%" PRId64 " (%.3g %%)", figures->skipped,
                   100.0 * (double)figures->skipped / (double)figures->steps);
    else table_cell(table, "0");
}

static struct table scale_table(const struct comparison_report *report) {
    char text[SCALE_TEXT_MAX];
    struct table table = {0};
    table_column(&table, "loss scale", TABLE_LEFT);
    table_columns(&table, TABLE_RIGHT, "steps skipped", "first", "last", "least", "most", "changes",
                  NULL);
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct group_figures *f = &report->comparisons[g].figures;
        if (isnan(f->scale_first) && f->skipped == 0) continue;
        table_cell(&table, "%s", report->groups[g].label);
        skipped_cell(&table, f);
        table_cell(&table, "%s", scale_text(text, f->scale_first));
        table_cell(&table, "%s", scale_text(text, f->scale_last));
        table_cell(&table, "%s", scale_text(text, f->scale_smallest));
        table_cell(&table, "%s", scale_text(text, f->scale_largest));
        NUMBER_CELL(&table, "%.0f", isnan(f->scale_first) ? NAN : (double)f->scale_changes);
    }
    return table;
}

static void memory_cell(struct table *table, double bytes) {
    if (bytes >= GIB) NUMBER_CELL(table, "%.2f GiB", bytes / GIB);
    else NUMBER_CELL(table, "%.1f MiB", bytes / MIB);
}

static struct table speed_table(const struct comparison_report *report) {
    struct table table = {0};
    table_column(&table, "run", TABLE_LEFT);
    table_columns(&table, TABLE_RIGHT, "tokens/s", "speed", "peak memory", "saved", NULL);
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct comparison *c = &report->comparisons[g];
        bool other = g != report->reference;
        table_cell(&table, "%s", report->groups[g].label);
        NUMBER_CELL(&table, "%.0f", c->figures.tokens_per_s);
        NUMBER_CELL(&table, "%.2f x", other ? c->speed_up : NAN);
        memory_cell(&table, c->figures.memory_bytes);
        NUMBER_CELL(&table, "%.1f %%", other ? c->memory_saving : NAN);
    }
    return table;
}

static bool has_noise(const struct difference *d) {
    return d->count > 1 && !isnan(d->mean);
}

static void noise_row(struct table *table, const char *label, const char *figure,
                      const struct difference *d) {
    if (!has_noise(d)) return;
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

static double part_ms(const struct run_record *run, const char *name) {
    for (int i = 0; run && i < arrlen(run->profile); i++)
        if (strcmp(run->profile[i].name, name) == 0) return run->profile[i].ms;
    return NAN;
}

static void profile_row(struct table *table, const struct comparison_report *report,
                        const char *name) {
    double most = 0;
    for (int g = 0; g < arrlen(report->groups); g++)
        most = fmax(most, part_ms(profiled_run(&report->groups[g]), name));
    if (most < 0.05) return; /* as ./train --profile leaves them out */
    table_cell(table, "%s", name);
    for (int g = 0; g < arrlen(report->groups); g++)
        NUMBER_CELL(table, "%.1f ms", part_ms(profiled_run(&report->groups[g]), name));
}

/* Of the runs of one model, the one with the most operations has those of all. */
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
        profile_row(&table, report, named->profile[i].name);
    table_cell(&table, "whole step");
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct run_record *run = profiled_run(&report->groups[g]);
        NUMBER_CELL(&table, "%.1f ms", run ? run->profile_step_ms : NAN);
    }
    table_cell(&table, "bare products");
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct run_record *run = profiled_run(&report->groups[g]);
        NUMBER_CELL(&table, "%.1f ms", run ? run->profile_products_ms : NAN);
    }
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
    char rule[CHECK_TEXT_MAX];
    struct table table = {0};
    table_columns(&table, TABLE_LEFT, "check", "passes if", NULL);
    for (int i = 0; i < CHECKS; i++) {
        table_cell(&table, "%s", check_name(i));
        table_cell(&table, "%s", check_rule(rule, i, &report->limits));
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

const char *comparison_extent(char text[COMPARISON_EXTENT_MAX],
                              const struct comparison_report *report) {
    int steps[2] = {INT_MAX, 0}, seeds[2] = {INT_MAX, 0}; /* fewest, most */
    for (int g = 0; g < arrlen(report->comparisons); g++) {
        const struct comparison *c = &report->comparisons[g];
        int pairs = (int)arrlen(c->pairs);
        if (g == report->reference) continue; /* with itself it has all that it has */
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
    for (int g = 0; g < arrlen(report->groups); g++) /* the shortest */
        if (report->comparisons[g].steps < c->steps) c = &report->comparisons[g];
    fprintf(out,
            "The training loss is the mean of the last %d steps; the curve is that of means over "
            "%d steps, where it is farthest from the reference after step %.0f. Runs of one seed "
            "begin with the same weights and read the same batches.",
            c->window, c->window, c->settled);
}

/* The numbers of pairs in the rows of the table of noise, each once, ascending. */
static int noise_counts(int counts[RUN_GROUPS_MAX], const struct comparison_report *report) {
    int kinds = 0;
    for (int g = 0; g < arrlen(report->comparisons); g++) {
        const struct comparison *c = &report->comparisons[g];
        int pairs = (int)arrlen(c->pairs), at = 0;
        bool any = has_noise(&c->training) || has_noise(&c->validation) || has_noise(&c->curve) ||
                   has_noise(&c->norm);
        if (g == report->reference || !any) continue;
        while (at < kinds && counts[at] < pairs) at++;
        if (at < kinds && counts[at] == pairs) continue;
        for (int i = kinds++; i > at; i--) counts[i] = counts[i - 1];
        counts[at] = pairs;
    }
    return kinds;
}

static void noise_note(FILE *out, const struct comparison_report *report) {
    int counts[RUN_GROUPS_MAX], kinds = noise_counts(counts, report);
    fprintf(out, "Scatter: standard deviation of the differences over the seeds. Noise: that of "
                 "the reference itself. A difference is real beyond its margin, the smaller of");
    for (int i = 0; i < kinds; i++) {
        fprintf(out, "%s %.2f scatters%s and %.2f noises", i ? "," : "",
                student_95(counts[i] - 1) / sqrt(counts[i]), i ? "" : " (95 %, Student's t)",
                2 * sqrt(2.0 / counts[i]));
        if (kinds > 1) fprintf(out, " with %d seeds", counts[i]);
    }
    fprintf(out, ".%s", counts[0] < 4 ? " With so few seeds both are known roughly only." : "");
}

void comparison_print_sections(FILE *out, const struct comparison_report *report,
                               enum comparison_section first, enum comparison_section last,
                               section_printer *print) {
    static const struct {
        const char *heading;
        struct table (*table)(const struct comparison_report *report);
        void (*note)(FILE *out, const struct comparison_report *report);
    } sections[] = {
        [COMPARISON_LOSSES] = {"Losses", losses_table, losses_note},
        [COMPARISON_GRADIENTS] = {"Gradient norms", gradients_table, NULL},
        [COMPARISON_SCALE] = {"Loss scale", scale_table, NULL},
        [COMPARISON_SPEED] = {"Speed and memory", speed_table, NULL},
        [COMPARISON_PROFILE] = {"Where the time goes", profile_table, NULL},
        [COMPARISON_NOISE] = {"Noise", noise_table, noise_note},
        [COMPARISON_CHECKS] = {"Checks", checks_table, NULL},
        [COMPARISON_LIMITS] = {"Limits", limits_table, NULL},
    };
    for (int i = (int)first; i <= (int)last; i++) {
        struct table table = sections[i].table(report);
        struct printed note = {0};
        if (table_rows(&table) > 0) {
            if (sections[i].note) {
                if (printed_open(&note)) abort();
                sections[i].note(note.out, report);
                if (printed_close(&note)) abort();
            }
            print(out, sections[i].heading, &table, note.text);
            free(note.text);
        }
        table_free(&table);
    }
}
