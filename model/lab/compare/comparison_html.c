#include "model/lab/compare/comparison_print.h"

/* A report as one page, with charts. */
#include <math.h>
#include <stdlib.h>

#include <stb/stb_ds.h>

#include "data/base/printed.h"
#include "model/lab/page/chart_print.h"
#include "model/lab/compare/comparison_tables.h"
#include "model/lab/page/page.h"

_Static_assert((int)RUN_GROUPS_MAX <= (int)CHART_SERIES_MAX, "each group has a colour");

/* A chart that owns the points of its series. */
struct drawing {
    struct chart chart;
    struct chart_series series[CHART_SERIES_MAX];
    double *x[CHART_SERIES_MAX], *y[CHART_SERIES_MAX]; /* stb_ds arrays; NULL: points of others */
};

static void draw(FILE *out, struct drawing *drawing) {
    drawing->chart.series = drawing->series;
    drawing->chart.x_label = "step";
    chart_print(out, &drawing->chart);
    for (int i = 0; i < CHART_SERIES_MAX; i++) {
        arrfree(drawing->x[i]);
        arrfree(drawing->y[i]);
    }
}

static struct chart_series *add_series(struct drawing *drawing,
                                       const struct comparison_report *report, int g,
                                       const double *x, const double *y, int count) {
    struct chart_series *series = &drawing->series[drawing->chart.series_count++];
    *series = (struct chart_series){
        .label = report->groups[g].label, .x = x, .y = y, .count = count, .colour = g};
    return series;
}

/* The points of the group that the drawing owns. */
static struct chart_series *add_own(struct drawing *drawing, const struct comparison_report *report,
                                    int g) {
    return add_series(drawing, report, g, drawing->x[g], drawing->y[g], (int)arrlen(drawing->x[g]));
}

static void loss_chart(FILE *out, const struct comparison_report *report) {
    struct drawing drawing = {
        .chart = {.title = "Training loss, smoothed", .y_label = "nats per token"}};
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct comparison *c = &report->comparisons[g];
        add_series(&drawing, report, g, c->step, c->smoothed[COMPARE_OTHER], c->steps);
    }
    draw(out, &drawing);
}

/* The reference's own line, which is 0 everywhere, shows where the others should be. */
static void difference_chart(FILE *out, const struct comparison_report *report) {
    struct drawing drawing = {.chart = {.title = "Difference of the training loss, smoothed",
                                        .y_label = "% of the reference",
                                        .zero_y = true}};
    double settled = report->comparisons[report->reference].settled;
    struct chart_mark mark = {report->comparisons[0].step[0], settled, "not judged"};
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct comparison *c = &report->comparisons[g];
        add_series(&drawing, report, g, c->step, c->percent, c->steps);
    }
    if (mark.to > mark.from) {
        drawing.chart.marks = &mark;
        drawing.chart.mark_count = 1;
    }
    draw(out, &drawing);
}

static void validation_chart(FILE *out, const struct comparison_report *report) {
    bool any = false;
    struct drawing drawing = {.chart = {.title = "Validation loss", .y_label = "nats per token"}};
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct run_record *run = report->groups[g].runs[0];
        for (int i = 0; i < arrlen(run->validations); i++) {
            arrput(drawing.x[g], (double)run->validations[i].step);
            arrput(drawing.y[g], run->validations[i].loss);
            any = true;
        }
        add_own(&drawing, report, g);
    }
    if (any) draw(out, &drawing);
}

/* A value of the steps of the groups' first runs, as means over `window` of them. */
static struct chart_series *add_steps(struct drawing *drawing,
                                      const struct comparison_report *report, int g, size_t offset,
                                      int window) {
    const struct run_record *run = report->groups[g].runs[0];
    int count = (int)arrlen(run->steps);
    double *values = NULL;
    for (int i = 0; i < count; i++) {
        arrput(drawing->x[g], (double)run->steps[i].step);
        arrput(values, *(const double *)((const char *)&run->steps[i] + offset));
    }
    arrsetlen(drawing->y[g], (size_t)count);
    smooth(drawing->y[g], values, count, count > window ? window : 1);
    arrfree(values);
    return add_own(drawing, report, g);
}

static void steps_charts(FILE *out, const struct comparison_report *report) {
    struct drawing norm = {
        .chart = {.title = "Gradient norm, smoothed", .y_label = "before clipping", .log_y = true}};
    struct drawing scale = {.chart = {.title = "Loss scale", .power_of_two_y = true}};
    struct drawing speed = {
        .chart = {.title = "Speed, smoothed", .y_label = "tokens per second", .zero_y = true}};
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct comparison *c = &report->comparisons[g];
        add_steps(&norm, report, g, offsetof(struct run_step, gradient_norm), c->window);
        add_steps(&speed, report, g, offsetof(struct run_step, tokens_per_s), c->window);
        if (isfinite(c->figures.scale_first))
            add_steps(&scale, report, g, offsetof(struct run_step, loss_scale), 1)->style =
                CHART_STEPS;
    }
    draw(out, &norm);
    if (scale.chart.series_count > 0) draw(out, &scale);
    draw(out, &speed);
}

static void print_section(FILE *out, const char *heading, const struct table *table,
                          const char *note) {
    page_heading(out, heading);
    table_print_html(out, table);
    if (note) page_paragraph(out, "%s", note);
}

static void print_verdicts(FILE *out, const struct comparison_report *report) {
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct comparison *c = &report->comparisons[g];
        const struct verdict *verdict = &report->verdicts[g];
        struct printed printed;
        if (g == report->reference && verdict->pass) continue;
        if (printed_open(&printed)) abort();
        FILE *words = printed.out;
        fputs(report->groups[g].label, words);
        for (int i = 0; i < CHECKS; i++)
            if (verdict->checks[i].outcome == CHECK_FAIL)
                fprintf(words, "; %s: %s", check_name(i), verdict->checks[i].text);
        if (verdict->pass) {
            fprintf(words, ": training loss %+.3f %%", c->training.mean);
            if (c->validation_step >= 0)
                fprintf(words, ", validation loss %+.3f %%", c->validation.mean);
            if (isfinite(c->speed_up)) fprintf(words, ", %.2f times as fast", c->speed_up);
            if (isfinite(c->memory_saving))
                fprintf(words, ", %.1f %% less memory", c->memory_saving);
        }
        if (printed_close(&printed)) abort();
        page_verdict(out, verdict->pass ? PAGE_GOOD : PAGE_BAD, verdict->pass ? "pass" : "fail",
                     printed.text);
        free(printed.text);
    }
}

static void print_charts(FILE *out, const struct comparison_report *report) {
    page_heading(out, "Curves");
    page_charts_begin(out);
    loss_chart(out, report);
    difference_chart(out, report);
    validation_chart(out, report);
    steps_charts(out, report);
    page_charts_end(out);
    if (arrlen(report->comparisons[report->reference].pairs) > 1)
        page_paragraph(out, "Training losses are means over the seeds; the other charts show the "
                            "first seed.");
}

static char *title_of(const struct comparison_report *report) {
    struct printed printed;
    if (printed_open(&printed)) abort();
    for (int g = 0; g < arrlen(report->groups); g++)
        fprintf(printed.out, "%s%s", g ? ", " : "", report->groups[g].label);
    fputs(" compared", printed.out);
    if (printed_close(&printed)) abort();
    return printed.text;
}

static void print_configs(FILE *out, const struct comparison_report *report) {
    struct table configs = comparison_table_configs(report);
    page_heading(out, "Configs");
    page_paragraph(out, "%s", comparison_config_sentence(report));
    if (table_rows(&configs) > 0) table_print_html(out, &configs);
    table_free(&configs);
    if (report->made_by) page_code(out, report->made_by);
    if (report->command) page_code(out, report->command);
}

void comparison_print_html(FILE *out, const struct comparison_report *report) {
    char summary[300], extent[COMPARISON_EXTENT_MAX], *title = title_of(report);
    snprintf(summary, sizeof summary, "%s, measured against %s", comparison_extent(extent, report),
             report->groups[report->reference].label);
    page_begin(out, title, summary);
    free(title);
    print_verdicts(out, report);
    for (int i = 0; i < arrlen(report->warnings); i++)
        page_verdict(out, PAGE_NEUTRAL, "warning", report->warnings[i]);
    comparison_print_sections(out, report, COMPARISON_LOSSES, COMPARISON_LOSSES, print_section);
    print_charts(out, report);
    comparison_print_sections(out, report, COMPARISON_GRADIENTS, COMPARISON_LIMITS, print_section);
    print_configs(out, report);
    page_end(out);
}
