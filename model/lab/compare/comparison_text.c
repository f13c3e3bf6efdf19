#include "model/lab/compare/comparison_print.h"

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

static void print_text_section(FILE *out, const char *heading, const struct table *table,
                               const char *note) {
    (void)heading; /* the first column says it */
    fputc('\n', out);
    table_print_text(out, table, WRAP_WIDTH);
    if (note) print_wrapped(out, note, 0, 0);
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
    struct table configs = comparison_table_configs(report);
    print_title(out, report);
    fputc('\n', out);
    print_wrapped(out, comparison_config_sentence(report), 0, 0);
    if (table_rows(&configs) > 0) print_text_section(out, "Configs", &configs, NULL);
    table_free(&configs);
    for (int i = 0; i < arrlen(report->warnings); i++)
        print_labelled(out, "warning", report->warnings[i]);
    comparison_print_sections(out, report, COMPARISON_LOSSES, COMPARISON_LOSSES,
                              print_text_section);
    print_reasons(out, report);
    print_advice(out, report);
    comparison_print_sections(out, report, COMPARISON_GRADIENTS, COMPARISON_NOISE,
                              print_text_section);
}

static void print_markdown_section(FILE *out, const char *heading, const struct table *table,
                                   const char *note) {
    fprintf(out, "\n## %s\n\n", heading);
    table_print_markdown(out, table);
    if (note) fprintf(out, "\n%s\n", note);
}

static void print_code(FILE *out, const char *text) {
    if (text) fprintf(out, "\n```\n%s\n```\n", text);
}

void comparison_print_markdown(FILE *out, const struct comparison_report *report) {
    section_printer *print = print_markdown_section;
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
    comparison_print_sections(out, report, COMPARISON_LOSSES, COMPARISON_LOSSES, print);
    comparison_print_sections(out, report, COMPARISON_CHECKS, COMPARISON_CHECKS, print);
    comparison_print_sections(out, report, COMPARISON_GRADIENTS, COMPARISON_NOISE, print);
    comparison_print_sections(out, report, COMPARISON_LIMITS, COMPARISON_LIMITS, print);
    if (report->made_by || report->command) fputs("\n## Commands\n", out);
    print_code(out, report->made_by);
    print_code(out, report->command);
}
