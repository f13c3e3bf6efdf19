#include "model/lab/compare/comparison_print.h"

/* A report for people who read text: on a terminal, or as Markdown. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/base/printed.h"
#include "model/lab/compare/comparison_tables.h"
#include "model/lab/page/wrap.h"

static void print_labelled(FILE *out, const char *label, const char *text) {
    char *whole;
    if (asprintf(&whole, "%s: %s", label, text) < 0) abort();
    print_wrapped(out, whole, 0, 4);
    free(whole);
}

/* ---- labels for 80 columns */

/* bf16:gradients.dtype=lower becomes bf16:dtype=lower. */
static char *short_label(const char *label) {
    char *text = strdup(label), *to = text, *key = NULL; /* key: that of a setting begins there */
    if (!text) abort();
    for (; *label; label++) {
        if (*label == '.' && key) {
            to = key;
            continue;
        }
        *to++ = *label;
        if (*label == '=') key = NULL;
        if (*label == ':') key = label[1 + strcspn(label + 1, ":=")] == '=' ? to : NULL;
    }
    *to = '\0';
    return text;
}

static void free_labels(struct run_group *groups) {
    for (int g = 0; g < arrlen(groups); g++) free(groups[g].label);
    arrfree(groups);
}

static bool labels_differ(const struct run_group *groups) {
    for (int g = 0; g < arrlen(groups); g++)
        for (int other = 0; other < g; other++)
            if (strcmp(groups[g].label, groups[other].label) == 0) return false;
    return true;
}

/* The groups under short labels, or NULL where these would not tell them apart. */
static struct run_group *short_groups(const struct run_group *groups) {
    struct run_group *copies = NULL;
    for (int g = 0; g < arrlen(groups); g++) {
        struct run_group copy = {short_label(groups[g].label), groups[g].runs};
        arrput(copies, copy);
    }
    if (labels_differ(copies)) return copies;
    free_labels(copies);
    return NULL;
}

/* ---- on a terminal */

static char *title_of(const struct comparison_report *report) {
    char extent[COMPARISON_EXTENT_MAX];
    struct printed printed;
    if (printed_open(&printed)) abort();
    for (int g = 0; g < arrlen(report->groups); g++)
        fprintf(printed.out, "%s%s", g == 0 ? "" : ", ", report->groups[g].label);
    fprintf(printed.out, ": %s, against %s", comparison_extent(extent, report),
            report->groups[report->reference].label);
    if (printed_close(&printed)) abort();
    return printed.text;
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
    struct comparison_report narrow = *report;
    struct run_group *groups = short_groups(report->groups);
    if (groups) narrow.groups = groups;
    struct table configs = comparison_table_configs(&narrow);
    char *title = title_of(report);
    print_wrapped(out, title, 0, 2);
    free(title);
    print_wrapped(out, comparison_config_sentence(report), 0, 0);
    if (table_rows(&configs) > 0) print_text_section(out, "Configs", &configs, NULL);
    table_free(&configs);
    for (int i = 0; i < arrlen(report->warnings); i++)
        print_labelled(out, "warning", report->warnings[i]);
    comparison_print_sections(out, &narrow, COMPARISON_LOSSES, COMPARISON_LOSSES,
                              print_text_section);
    print_reasons(out, report);
    print_advice(out, report);
    comparison_print_sections(out, &narrow, COMPARISON_GRADIENTS, COMPARISON_NOISE,
                              print_text_section);
    free_labels(groups);
}

/* ---- as Markdown */

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
    char *title = title_of(report);
    fputs("# ", out);
    table_escape_markdown(out, title);
    fprintf(out, "\n\n**%s** %s\n", passes ? "All pass." : "Not all pass.",
            comparison_config_sentence(report));
    free(title);
    struct table configs = comparison_table_configs(report);
    if (table_rows(&configs) > 0) {
        fputc('\n', out);
        table_print_markdown(out, &configs);
    }
    table_free(&configs);
    for (int i = 0; i < arrlen(report->warnings); i++) {
        fputs("\nWarning: ", out);
        table_escape_markdown(out, report->warnings[i]);
        fputs(".\n", out);
    }
    comparison_print_sections(out, report, COMPARISON_LOSSES, COMPARISON_LOSSES, print);
    comparison_print_sections(out, report, COMPARISON_CHECKS, COMPARISON_CHECKS, print);
    comparison_print_sections(out, report, COMPARISON_GRADIENTS, COMPARISON_NOISE, print);
    comparison_print_sections(out, report, COMPARISON_LIMITS, COMPARISON_LIMITS, print);
    if (report->made_by || report->command) fputs("\n## Commands\n", out);
    print_code(out, report->made_by);
    print_code(out, report->command);
}
