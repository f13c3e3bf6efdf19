#include "model/lab/compare/comparison_print.h"

#include <math.h>
#include <stddef.h>

#include <stb/stb_ds.h>

#include "model/page/chart.h"

_Static_assert((int)RUN_GROUPS_MAX <= (int)CHART_SERIES_MAX, "each group has a colour");

enum series_source {
    OF_COMPARISON,  /* a double * of struct comparison */
    OF_STEPS,       /* a double of struct run_step, from the first run, smoothed */
    OF_SCALED,      /* a double of struct run_step, only for groups with a loss scale */
    OF_VALIDATIONS, /* validation losses of the first run */
    OF_TIMED,       /* the same, over the time of the training steps up to them */
};

enum { DIFFERENCE = 1 }; /* includes the reference, whose line at 0 is the target of the others */

static const struct drawing {
    struct chart chart;
    enum series_source source;
    size_t offset;
} drawings[] = {
    {{.title = "Training loss, smoothed", .y_label = "nats per token"},
     OF_COMPARISON,
     offsetof(struct comparison, smoothed[COMPARE_OTHER])},
    {{.title = "Difference of the training loss, smoothed",
      .y_label = "% of the reference",
      .zero_y = true},
     OF_COMPARISON,
     offsetof(struct comparison, percent)},
    {{.title = "Validation loss", .y_label = "nats per token"}, OF_VALIDATIONS, 0},
    {{.title = "Validation loss over time",
      .x_label = "seconds of training",
      .y_label = "nats per token"},
     OF_TIMED,
     0},
    {{.title = "Gradient norm, smoothed", .y_label = "before clipping", .log_y = true},
     OF_STEPS,
     offsetof(struct run_step, gradient_norm)},
    {{.title = "Loss scale", .power_of_two_y = true, .steps = true},
     OF_SCALED,
     offsetof(struct run_step, loss_scale)},
    {{.title = "Speed, smoothed", .y_label = "tokens per second", .zero_y = true},
     OF_STEPS,
     offsetof(struct run_step, tokens_per_s)},
};

/* Appends the points of a group to the arrays. */
static void add_points(double **x, double **y, const struct comparison *c,
                       const struct drawing *drawing) {
    const struct run_record *run = c->group->runs[0];
    int count = (int)arrlen(run->steps);
    double *values = NULL;
    if (drawing->source == OF_COMPARISON) {
        double *const *curve = (double *const *)((const char *)c + drawing->offset);
        for (int i = 0; i < c->steps; i++) {
            arrput(*x, c->step[i]);
            arrput(*y, (*curve)[i]);
        }
    } else if (drawing->source == OF_VALIDATIONS || drawing->source == OF_TIMED) {
        double speed = run_tokens_per_s(run);
        for (int i = 0; i < arrlen(run->validations); i++) {
            double seconds = run->validations[i].tokens / speed;
            if (drawing->source == OF_TIMED && !isfinite(seconds)) continue;
            arrput(*x, drawing->source == OF_TIMED ? seconds : (double)run->validations[i].step);
            arrput(*y, run->validations[i].loss);
        }
    } else if (drawing->source == OF_STEPS || isfinite(c->figures.scale_first)) {
        for (int i = 0; i < count; i++) {
            arrput(*x, (double)run->steps[i].step);
            arrput(values, *(const double *)((const char *)&run->steps[i] + drawing->offset));
        }
        arrsetlen(*y, (size_t)count);
        smooth(*y, values, count, drawing->source == OF_STEPS && count > c->window ? c->window : 1);
        arrfree(values);
    }
}

/* Prints a chart; nothing if it has no points. */
static void draw(const struct page *page, const struct comparison_report *report, int i) {
    const struct comparison *reference = &report->comparisons[report->reference];
    struct chart_series series[CHART_SERIES_MAX];
    double *x[CHART_SERIES_MAX] = {NULL}, *y[CHART_SERIES_MAX] = {NULL};
    struct chart chart = drawings[i].chart;
    chart.series = series;
    if (!chart.x_label) chart.x_label = "step";
    if (i == DIFFERENCE) chart.shaded_to = reference->settled, chart.shaded = "not judged";
    for (int g = 0; g < arrlen(report->groups); g++) {
        add_points(&x[g], &y[g], &report->comparisons[g], &drawings[i]);
        if (x[g])
            series[chart.series_count++] =
                (struct chart_series){report->groups[g].label, x[g], y[g], (int)arrlen(x[g]), g};
    }
    if (chart.series_count) chart_print(page, &chart);
    for (int g = 0; g < arrlen(report->groups); g++) {
        arrfree(x[g]);
        arrfree(y[g]);
    }
}

void comparison_charts_print(const struct page *page, const struct comparison_report *report) {
    for (int i = 0; i < (int)(sizeof drawings / sizeof *drawings); i++)
        if (page->form == PAGE_HTML || i == DIFFERENCE) draw(page, report, i);
}
