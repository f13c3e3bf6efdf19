#include "model/lab/compare/comparison_print.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/printed.h"
#include "data/util/utf8.h"
#include "model/lab/compare/comparison_charts.h"
#include "model/lab/compare/comparison_tables.h"
#include "model/page/gnuplot.h"
#include "model/page/page.h"
#include "model/page/wrap.h"

/* ---- parts of a report in each form */

struct sheet {
    FILE *out;
    enum report_form form;
    const struct comparison_report *report;
};

static void print_heading(const struct sheet *sheet, const char *text) {
    if (sheet->form == REPORT_HTML) page_heading(sheet->out, text);
    if (sheet->form == REPORT_MARKDOWN) fprintf(sheet->out, "\n## %s\n", text);
}

static void print_paragraph(const struct sheet *sheet, const char *text) {
    if (!text) return;
    if (sheet->form == REPORT_HTML) page_paragraph(sheet->out, "%s", text);
    else if (sheet->form == REPORT_MARKDOWN) fprintf(sheet->out, "\n%s\n", text);
    else print_wrapped(sheet->out, text, 0, 0);
}

static void print_table(const struct sheet *sheet, const struct table *table) {
    if (sheet->form == REPORT_HTML) {
        table_print_html(sheet->out, table);
        return;
    }
    fputc('\n', sheet->out);
    if (sheet->form == REPORT_MARKDOWN) table_print_markdown(sheet->out, table);
    else table_print_text(sheet->out, table, WRAP_WIDTH);
}

static void print_code(const struct sheet *sheet, const char *text) {
    if (!text) return;
    if (sheet->form == REPORT_HTML) page_code(sheet->out, text);
    else fprintf(sheet->out, "\n```\n%s\n```\n", text);
}

/* Prints a line that begins with the emphasized text `head`. */
__attribute__((format(printf, 4, 5))) static void print_note(const struct sheet *sheet,
                                                             enum page_mood mood, const char *head,
                                                             const char *format, ...) {
    char *text, *whole;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0) abort();
    va_end(arguments);
    if (asprintf(&whole, "%s: %s", head, text) < 0) abort();
    if (sheet->form == REPORT_HTML) page_verdict(sheet->out, mood, head, text);
    else if (sheet->form == REPORT_MARKDOWN) {
        fputc('\n', sheet->out);
        table_escape_markdown(sheet->out, whole);
        fputc('\n', sheet->out);
    } else print_wrapped(sheet->out, whole, 0, 4);
    free(whole);
    free(text);
}

static void print_section(const struct sheet *sheet, enum comparison_part part) {
    struct comparison_section section = comparison_section_make(sheet->report, part);
    if (table_rows(&section.table) > 0) {
        print_heading(sheet, section.heading);
        print_table(sheet, &section.table);
        print_paragraph(sheet, section.note);
    }
    table_free(&section.table);
    free(section.note);
}

/* ---- labels for 80 columns */

/* Returns a copy in which bf16:gradients.dtype=lower is bf16:dtype=lower. */
static char *short_label(const char *label) {
    char *text = strdup(label), *to = text, *key = NULL; /* key: start of a setting's key */
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

/* Returns the groups with short labels, or with full labels if two short ones would be equal. */
static struct run_group *make_short_groups(const struct run_group *groups) {
    struct run_group *copies = NULL;
    bool alike = false;
    for (int g = 0; g < arrlen(groups); g++) {
        struct run_group copy = {short_label(groups[g].label), groups[g].runs};
        for (int other = 0; other < g; other++)
            alike = alike || strcmp(copy.label, copies[other].label) == 0;
        arrput(copies, copy);
    }
    for (int g = 0; g < arrlen(groups) && alike; g++) strcpy(copies[g].label, groups[g].label);
    return copies;
}

static void free_short_groups(struct run_group *groups) {
    for (int g = 0; g < arrlen(groups); g++) free(groups[g].label);
    arrfree(groups);
}

/* ---- head of the report: runs and verdicts */

static char *all_labels(const struct comparison_report *report) {
    struct printed printed;
    if (printed_open(&printed)) abort();
    for (int g = 0; g < arrlen(report->groups); g++)
        fprintf(printed.out, "%s%s", g == 0 ? "" : ", ", report->groups[g].label);
    if (printed_close(&printed)) abort();
    return printed.text;
}

static void print_title(const struct sheet *sheet) {
    const struct comparison_report *report = sheet->report;
    char extent[COMPARISON_EXTENT_MAX], *labels = all_labels(report), *summary, *title;
    if (asprintf(&summary, "%s, against %s", comparison_extent(extent, report),
                 report->groups[report->reference].label) < 0 ||
        asprintf(&title, "%s: %s", labels, summary) < 0)
        abort();
    if (sheet->form == REPORT_HTML) page_begin(sheet->out, labels, summary);
    if (sheet->form == REPORT_TEXT) print_wrapped(sheet->out, title, 0, 2);
    if (sheet->form == REPORT_MARKDOWN) {
        fputs("# ", sheet->out);
        table_escape_markdown(sheet->out, title);
        fputc('\n', sheet->out);
    }
    free(title);
    free(summary);
    free(labels);
}

static void print_configs(const struct sheet *sheet) {
    struct table configs = comparison_table_configs(sheet->report);
    print_paragraph(sheet, comparison_config_sentence(sheet->report));
    if (table_rows(&configs) > 0) print_table(sheet, &configs);
    table_free(&configs);
}

static void print_passed(const struct sheet *sheet, const char *head, const struct comparison *c) {
    char validation[60] = "", speed[60] = "", memory[60] = "";
    if (c->validation_step >= 0)
        snprintf(validation, sizeof validation, ", validation loss %+.3f %%", c->validation.mean);
    if (isfinite(c->speed_up)) snprintf(speed, sizeof speed, ", %.2f times as fast", c->speed_up);
    if (isfinite(c->memory_saving))
        snprintf(memory, sizeof memory, ", %.1f %% less memory", c->memory_saving);
    print_note(sheet, PAGE_GOOD, head, "training loss %+.3f %%%s%s%s", c->training.mean, validation,
               speed, memory);
}

/* Prints the checks that failed or are within noise, and the groups that passed. */
static void print_verdicts(const struct sheet *sheet) {
    const struct comparison_report *report = sheet->report;
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct comparison *c = &report->comparisons[g];
        const struct verdict *verdict = &report->verdicts[g];
        char head[300];
        for (int i = 0; i < CHECKS; i++) {
            const struct check *check = &verdict->checks[i];
            if (check->outcome != CHECK_FAIL && check->outcome != CHECK_NOISE) continue;
            snprintf(head, sizeof head, "%s: %s, %s", report->groups[g].label,
                     check_outcome_name(check->outcome), check_name(i));
            print_note(sheet, check->outcome == CHECK_FAIL ? PAGE_BAD : PAGE_NEUTRAL, head,
                       "%s; limit: %s", check->text, check->rule);
        }
        if (g == report->reference || !verdict->pass || sheet->form == REPORT_TEXT) continue;
        snprintf(head, sizeof head, "%s: pass", report->groups[g].label);
        print_passed(sheet, head, c);
    }
}

/* Prints advice to use more seeds if a failure of a single seed may be noise. */
static void print_advice(const struct sheet *sheet) {
    const struct comparison_report *report = sheet->report;
    bool doubtful = false;
    for (int g = 0; g < arrlen(report->groups); g++)
        for (int i = CHECK_TRAINING_LOSS; i <= CHECK_CORRELATION; i++) {
            const struct check *check = &report->verdicts[g].checks[i];
            doubtful = doubtful || (check->outcome == CHECK_FAIL && isfinite(check->value) &&
                                    report->comparisons[g].norms_zero == 0 &&
                                    arrlen(report->comparisons[g].pairs) == 1);
        }
    if (doubtful)
        print_paragraph(sheet, "One seed does not tell such a difference from noise: small batches "
                               "and long runs let right runs drift apart too. Three or more seeds "
                               "do.");
}

static void print_charts(const struct sheet *sheet) {
    if (sheet->form == REPORT_HTML) {
        page_heading(sheet->out, "Curves");
        page_charts_begin(sheet->out);
        comparison_charts_print(sheet->out, sheet->report);
        page_charts_end(sheet->out);
        if (arrlen(sheet->report->comparisons[sheet->report->reference].pairs) > 1)
            print_paragraph(sheet, "Training losses are means over the seeds; the other charts "
                                   "show the first seed.");
    } else if (sheet->form == REPORT_TEXT) {
        fputc('\n', sheet->out);
        print_paragraph(sheet, gnuplot_problem());
        comparison_charts_print_text(sheet->out, sheet->report);
    }
}

static void print_form(FILE *out, const struct comparison_report *report, enum report_form form) {
    struct comparison_report narrow = *report;
    struct sheet sheet = {out, form, report}, tables = sheet;
    bool text = form == REPORT_TEXT;
    if (text) tables.report = &narrow;
    narrow.groups = make_short_groups(report->groups);
    print_title(&sheet);
    if (!text) print_verdicts(&sheet);
    print_configs(&tables);
    for (int i = 0; i < arrlen(report->warnings); i++)
        print_note(&sheet, PAGE_NEUTRAL, "warning", "%s", report->warnings[i]);
    print_section(&tables, COMPARISON_LOSSES);
    if (text) print_verdicts(&sheet);
    print_advice(&sheet);
    print_charts(&tables);
    for (int part = COMPARISON_GRADIENTS; part <= (text ? COMPARISON_NOISE : COMPARISON_LIMITS);
         part++)
        print_section(&tables, (enum comparison_part)part);
    if (!text && (report->made_by || report->command)) print_heading(&sheet, "Commands");
    if (!text) print_code(&sheet, report->made_by);
    if (!text) print_code(&sheet, report->command);
    if (form == REPORT_HTML) page_end(out);
    free_short_groups(narrow.groups);
}

void comparison_print(FILE *out, const struct comparison_report *report, enum report_form form) {
    struct printed printed;
    if (form == REPORT_JSON) {
        comparison_print_json(out, report);
        return;
    }
    if (printed_open(&printed)) abort();
    print_form(printed.out, report, form);
    if (printed_close(&printed)) abort();
    /* Names of runs and config keys are untrusted; pages escape them. */
    fputs(form == REPORT_HTML ? printed.text : utf8_mask(printed.text), out);
    free(printed.text);
}
