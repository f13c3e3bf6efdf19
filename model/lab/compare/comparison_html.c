#include "model/lab/compare/comparison_html.h"

/* A report as one page, with charts. */
#include <math.h>
#include <stdlib.h>

#include <stb/stb_ds.h>

#include "data/base/printed.h"
#include "model/lab/page/chart.h"
#include "model/lab/compare/comparison_tables.h"
#include "model/lab/page/chart_print.h"
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

static struct chart_series *add_series(struct drawing *drawing, const char *label, int colour) {
    struct chart_series *series = &drawing->series[drawing->chart.series_count++];
    *series = (struct chart_series){.label = label, .colour = colour};
    return series;
}

static void loss_chart(FILE *out, const struct comparison_report *report) {
    struct drawing drawing = {
        .chart = {.title = "Training loss, smoothed", .y_label = "nats per token"}};
    for (int g = 0; g < arrlen(report->groups); g++) {
        const struct comparison *c = &report->comparisons[g];
        struct chart_series *series = add_series(&drawing, report->groups[g].label, g);
        series->x = c->step;
        series->y = c->smoothed[COMPARE_OTHER];
        series->count = c->steps;
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
        struct chart_series *series = add_series(&drawing, report->groups[g].label, g);
        series->x = c->step;
        series->y = c->percent;
        series->count = c->steps;
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
        struct chart_series *series = add_series(&drawing, report->groups[g].label, g);
        series->x = drawing.x[g];
        series->y = drawing.y[g];
        series->count = (int)arrlen(drawing.x[g]);
    }
    if (any) draw(out, &drawing);
}

typedef double step_value(const struct run_step *step);

static double norm_of(const struct run_step *step) {
    return step->gradient_norm;
}

static double speed_of(const struct run_step *step) {
    return step->tokens_per_s;
}

/* Means of a value over the window of steps, in the groups' first runs. */
static void add_smoothed(struct drawing *drawing, const struct comparison_report *report, int g,
                         step_value *value) {
    const struct run_record *run = report->groups[g].runs[0];
    int count = (int)arrlen(run->steps), window = report->comparisons[g].window;
    double *values = NULL;
    for (int i = 0; i < count; i++) {
        arrput(drawing->x[g], (double)run->steps[i].step);
        arrput(values, value(&run->steps[i]));
    }
    arrsetlen(drawing->y[g], (size_t)count);
    smooth(drawing->y[g], values, count, count > window ? window : 1);
    arrfree(values);
    struct chart_series *series = add_series(drawing, report->groups[g].label, g);
    series->x = drawing->x[g];
    series->y = drawing->y[g];
    series->count = count;
}

/* As it was, step by step. */
static void add_scale(struct drawing *drawing, const struct comparison_report *report, int g) {
    const struct run_record *run = report->groups[g].runs[0];
    for (int i = 0; i < arrlen(run->steps); i++) {
        arrput(drawing->x[g], (double)run->steps[i].step);
        arrput(drawing->y[g], run->steps[i].loss_scale);
    }
    struct chart_series *series = add_series(drawing, report->groups[g].label, g);
    series->x = drawing->x[g];
    series->y = drawing->y[g];
    series->count = (int)arrlen(drawing->x[g]);
    series->style = CHART_STEPS;
}

static void steps_charts(FILE *out, const struct comparison_report *report) {
    struct drawing norm = {
        .chart = {.title = "Gradient norm, smoothed", .y_label = "before clipping", .log_y = true}};
    struct drawing scale = {.chart = {.title = "Loss scale", .power_of_two_y = true}};
    struct drawing speed = {
        .chart = {.title = "Speed, smoothed", .y_label = "tokens per second", .zero_y = true}};
    for (int g = 0; g < arrlen(report->groups); g++) {
        add_smoothed(&norm, report, g, norm_of);
        add_smoothed(&speed, report, g, speed_of);
        if (isfinite(report->comparisons[g].figures.scale_first)) add_scale(&scale, report, g);
    }
    draw(out, &norm);
    if (scale.chart.series_count > 0) draw(out, &scale);
    draw(out, &speed);
}

static void print_section(FILE *out, struct table table, const char *heading, const char *text) {
    if (table_rows(&table) > 0) {
        page_heading(out, heading);
        table_print_html(out, &table);
        if (text) page_paragraph(out, "%s", text);
    }
    table_free(&table);
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
    char summary[300], extent[COMPARISON_EXTENT_MAX], note[COMPARISON_NOTE_MAX],
        *title = title_of(report);
    snprintf(summary, sizeof summary, "%s, measured against %s", comparison_extent(extent, report),
             report->groups[report->reference].label);
    page_begin(out, title, summary);
    free(title);
    print_verdicts(out, report);
    for (int i = 0; i < arrlen(report->warnings); i++)
        page_verdict(out, PAGE_NEUTRAL, "warning", report->warnings[i]);
    print_section(out, comparison_table_losses(report), "Losses",
                  comparison_note_losses(note, report));
    print_charts(out, report);
    print_section(out, comparison_table_gradients(report), "Gradient norms", NULL);
    print_section(out, comparison_table_scale(report), "Loss scale", NULL);
    print_section(out, comparison_table_speed(report), "Speed and memory", NULL);
    print_section(out, comparison_table_profile(report), "Where the time goes", NULL);
    print_section(out, comparison_table_noise(report), "Noise",
                  comparison_note_noise(note, report));
    print_section(out, comparison_table_checks(report), "Checks", NULL);
    print_section(out, comparison_table_limits(report), "Limits", NULL);
    print_configs(out, report);
    page_end(out);
}
