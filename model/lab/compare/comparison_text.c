#include "model/lab/compare/comparison_text.h"

/* A report for people who read text: on a terminal, or as Markdown. */
#include <math.h>

#include <stb/stb_ds.h>

#include "model/lab/compare/comparison_tables.h"
#include "model/lab/page/wrap.h"

static void print_labelled(FILE *out, const char *label, const char *text) {
    int column = fprintf(out, "%s: ", label);
    print_wrapped(out, text, column, 4);
}

static void print_title(FILE *out, const struct comparison_report *report) {
    char extent[COMPARISON_EXTENT_MAX];
    for (int g = 0; g < arrlen(report->groups); g++)
        fprintf(out, "%s%s", g == 0 ? "" : ", ", report->groups[g].label);
    fprintf(out, ": %s, against %s", comparison_extent(extent, report),
            report->groups[report->reference].label);
}

/* The checks that did not simply pass. */
static void print_reasons(FILE *out, const struct comparison_report *report) {
    for (int g = 0; g < arrlen(report->groups); g++)
        for (int i = 0; i < CHECKS; i++) {
            const struct check *check = &report->verdicts[g].checks[i];
            char rule[CHECK_TEXT_MAX], label[300], text[2 * CHECK_TEXT_MAX + 20];
            if (check->outcome != CHECK_FAIL && check->outcome != CHECK_NOISE) continue;
            snprintf(label, sizeof label, "%s: %s, %s", report->groups[g].label,
                     check_outcome_name(check->outcome), check_name(i));
            snprintf(text, sizeof text, "%s; limit: %s", check->text,
                     check_rule(rule, i, &report->limits));
            print_labelled(out, label, text);
        }
}

static void print_table(FILE *out, struct table table) {
    if (table_rows(&table) > 0) {
        fputc('\n', out);
        table_print_text(out, &table, WRAP_WIDTH);
    }
    table_free(&table);
}

/* What one seed cannot tell. */
static void print_advice(FILE *out, const struct comparison_report *report) {
    bool doubtful = false;
    for (int g = 0; g < arrlen(report->groups); g++)
        for (int i = CHECK_TRAINING_LOSS; i <= CHECK_CORRELATION; i++)
            doubtful = doubtful || (report->verdicts[g].checks[i].outcome == CHECK_FAIL &&
                                    isfinite(report->verdicts[g].checks[i].value) &&
                                    report->comparisons[g].norms_zero == 0 &&
                                    arrlen(report->comparisons[g].pairs) == 1);
    if (doubtful)
        print_wrapped(out,
                      "One seed does not tell such a difference from noise: small batches and long "
                      "runs let right runs drift apart too. Three or more seeds do.",
                      0, 0);
}

void comparison_print_text(FILE *out, const struct comparison_report *report) {
    char note[COMPARISON_NOTE_MAX];
    print_title(out, report);
    fputc('\n', out);
    print_wrapped(out, comparison_config_sentence(report), 0, 0);
    print_table(out, comparison_table_configs(report));
    for (int i = 0; i < arrlen(report->warnings); i++)
        print_labelled(out, "warning", report->warnings[i]);
    print_table(out, comparison_table_losses(report));
    print_wrapped(out, comparison_note_losses(note, report), 0, 0);
    print_reasons(out, report);
    print_advice(out, report);
    print_table(out, comparison_table_gradients(report));
    print_table(out, comparison_table_scale(report));
    print_table(out, comparison_table_speed(report));
    print_table(out, comparison_table_profile(report));
    print_table(out, comparison_table_noise(report));
    if (comparison_note_noise(note, report)[0]) print_wrapped(out, note, 0, 0);
}

static void print_section(FILE *out, struct table table, const char *heading, const char *text) {
    if (table_rows(&table) > 0) {
        fprintf(out, "\n## %s\n\n", heading);
        table_print_markdown(out, &table);
        if (text) fprintf(out, "\n%s\n", text);
    }
    table_free(&table);
}

static void print_code(FILE *out, const char *text) {
    if (text) fprintf(out, "\n```\n%s\n```\n", text);
}

void comparison_print_markdown(FILE *out, const struct comparison_report *report) {
    char note[COMPARISON_NOTE_MAX];
    bool passes = comparison_report_passes(report);
    fputs("# ", out);
    print_title(out, report);
    fprintf(out, "\n\n**%s** %s\n", passes ? "All pass." : "Not all pass.",
            comparison_config_sentence(report));
    struct table configs = comparison_table_configs(report);
    if (table_rows(&configs) > 0) {
        fputc('\n', out);
        table_print_markdown(out, &configs);
    }
    table_free(&configs);
    for (int i = 0; i < arrlen(report->warnings); i++)
        fprintf(out, "\nWarning: %s.\n", report->warnings[i]);
    print_section(out, comparison_table_losses(report), "Losses",
                  comparison_note_losses(note, report));
    print_section(out, comparison_table_checks(report), "Checks", NULL);
    print_section(out, comparison_table_gradients(report), "Gradient norms", NULL);
    print_section(out, comparison_table_scale(report), "Loss scale", NULL);
    print_section(out, comparison_table_speed(report), "Speed and memory", NULL);
    print_section(out, comparison_table_profile(report), "Where the time goes", NULL);
    print_section(out, comparison_table_noise(report), "Noise",
                  comparison_note_noise(note, report));
    print_section(out, comparison_table_limits(report), "Limits", NULL);
    if (report->made_by || report->command) fputs("\n## Commands\n", out);
    print_code(out, report->made_by);
    print_code(out, report->command);
}
