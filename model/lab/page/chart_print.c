#include "model/lab/page/chart_print.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include <stb/stb_ds.h>

#include "model/lab/page/chart_series.h"
#include "model/lab/page/page.h"

/* Units of the picture. On a phone one is about 0.7 pixels, and text is larger, see page.c: the
 * room for it is reckoned by that size. */
enum {
    WIDTH = 480,
    PLOT_HEIGHT = 220,
    LETTER = 8,     /* a wide letter of a text */
    LINE = 17,      /* of text */
    RIGHT_EDGE = 20 /* half of the last tick's label */
};

/* ---- what the axes show */

struct range {
    double from, to;
};

static void include(struct range *range, double value) {
    range->from = fmin(range->from, value);
    range->to = fmax(range->to, value);
}

static enum axis_kind kind_of_y(const struct chart *chart) {
    if (chart->power_of_two_y) return AXIS_POWERS_OF_TWO;
    return chart->log_y ? AXIS_DECADES : AXIS_LINEAR;
}

/* Returns whether there is anything to show. */
static bool make_axes(struct chart_area *area, const struct chart *chart) {
    struct range x = {INFINITY, -INFINITY}, y = x;
    enum axis_kind kind = kind_of_y(chart);
    bool whole = true, bars = false;
    assert(chart->series_count <= CHART_SERIES_MAX);
    for (int i = 0; i < chart->series_count; i++) {
        const struct chart_series *series = &chart->series[i];
        assert(series->colour >= 0 && series->colour < CHART_SERIES_MAX);
        if (series->style == CHART_BARS) bars = true;
        for (int j = 0; j < series->count; j++) {
            assert(isfinite(series->x[j]));
            assert(j == 0 || series->x[j] >= series->x[j - 1]);
            include(&x, series->x[j]);
            if (series->x[j] != floor(series->x[j])) whole = false;
            if (chart_shows(kind, series->y[j])) include(&y, series->y[j]);
        }
    }
    if (y.from > y.to) return false;
    if (chart->zero_y || bars) include(&y, 0);
    double beside = bars ? 0.5 : 0;
    axis_make(&area->x, AXIS_LINEAR, x.from - beside, x.to + beside, true, whole);
    axis_make(&area->y, kind, y.from, y.to, false, false);
    return true;
}

/* ---- texts */

static int letters(const char *text) {
    int count = 0;
    for (; *text; text++) count += (*text & 0xc0) != 0x80;
    return count;
}

static void print_text(FILE *out, double x, double y, const char *anchor, const char *text) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    page_text(out, text);
    fprintf(out, "</text>\n");
}

static void print_tick_label(FILE *out, double x, double y, const char *anchor,
                             const struct axis_tick *tick) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s", x, y, anchor, tick->label);
    if (tick->power[0])
        fprintf(out, "<tspan dy=\"-.4em\" font-size=\".78em\">%s</tspan>", tick->power);
    fprintf(out, "</text>\n");
}

static double widest_label(const struct axis *axis) {
    double widest = 0;
    for (int i = 0; i < axis->tick_count; i++) {
        const struct axis_tick *tick = &axis->ticks[i];
        widest = fmax(widest, LETTER * (letters(tick->label) + 0.8 * letters(tick->power)));
    }
    return widest;
}

/* ---- marks */

/* Where the label of a mark stands: in rows above the plot, so that it covers no curve. */
struct mark_label {
    const struct chart_mark *mark;
    double middle, width;
    int row;
};

static bool is_visible(const struct chart_mark *mark, const struct axis *x) {
    return mark->from <= x->to && mark->to >= x->from;
}

static double inside(double value, double from, double to) {
    return fmax(fmin(value, to), from);
}

static bool overlap(const struct mark_label *a, const struct mark_label *b) {
    return a->row == b->row && fabs(a->middle - b->middle) < (a->width + b->width) / 2 + LETTER;
}

/* Returns an stb_ds array; *rows becomes how many there are. */
static struct mark_label *place_labels(const struct chart *chart, const struct chart_area *area,
                                       int *rows) {
    struct mark_label *labels = NULL;
    *rows = 0;
    for (int i = 0; i < chart->mark_count; i++) {
        const struct chart_mark *mark = &chart->marks[i];
        if (!is_visible(mark, &area->x)) continue;
        struct mark_label label = {mark, 0, LETTER * letters(mark->label), 0};
        double from = fmax(mark->from, area->x.from), to = fmin(mark->to, area->x.to);
        label.middle = chart_x(area, (from + to) / 2);
        label.middle = inside(label.middle, label.width / 2, WIDTH - label.width / 2);
        for (int j = 0; j < (int)arrlen(labels); j++)
            if (overlap(&label, &labels[j])) {
                label.row++;
                j = -1;
            }
        if (label.row >= *rows) *rows = label.row + 1;
        arrput(labels, label);
    }
    return labels;
}

static void print_marks(FILE *out, const struct chart *chart, const struct chart_area *area) {
    for (int i = 0; i < chart->mark_count; i++) {
        const struct chart_mark *mark = &chart->marks[i];
        if (!is_visible(mark, &area->x)) continue;
        double from = chart_x(area, fmax(mark->from, area->x.from));
        double to = chart_x(area, fmin(mark->to, area->x.to)), top = area->top - 4;
        fprintf(out,
                "<rect class=\"band\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
                from, top, to - from, area->bottom - top);
    }
}

/* ---- the picture */

static void print_axes(FILE *out, const struct chart *chart, const struct chart_area *area,
                       double height) {
    for (int i = 0; i < area->y.tick_count; i++) {
        double y = chart_y(area, area->y.ticks[i].value);
        fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>\n", area->left, y, area->right);
        print_tick_label(out, area->left - 6, y + 4, "end", &area->y.ticks[i]);
    }
    for (int i = 0; i < area->x.tick_count; i++) {
        double x = chart_x(area, area->x.ticks[i].value);
        fprintf(out, "<path class=\"axis\" d=\"M%.1f %.1fv4\"/>\n", x, area->bottom);
        print_tick_label(out, x, area->bottom + LINE, "middle", &area->x.ticks[i]);
    }
    if (chart->y_label) print_text(out, 0, 13, "start", chart->y_label);
    if (chart->x_label)
        print_text(out, (area->left + area->right) / 2, height - 5, "middle", chart->x_label);
}

static void print_svg(FILE *out, const struct chart *chart, struct chart_area *area) {
    int rows;
    area->left = widest_label(&area->y) + 8;
    area->right = WIDTH - RIGHT_EDGE;
    struct mark_label *labels = place_labels(chart, area, &rows);
    double first_row = chart->y_label ? LINE + 4 : 0;
    area->top = first_row + rows * LINE + 8;
    area->bottom = area->top + PLOT_HEIGHT;
    double height = area->bottom + (chart->x_label ? 2 : 1) * LINE + 8;
    fprintf(out, "<svg class=\"chart\" viewBox=\"0 0 %d %.0f\" role=\"img\">\n<title>", WIDTH,
            height);
    page_text(out, chart->title);
    fprintf(out, "</title>\n");
    print_marks(out, chart, area);
    print_axes(out, chart, area, height);
    chart_print_series(out, chart, area);
    double ground = area->y.kind == AXIS_LINEAR && area->y.from < 0 && area->y.to > 0
                        ? chart_y(area, 0)
                        : area->bottom;
    fprintf(out, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/>\n", area->left, ground, area->right);
    for (int i = 0; i < (int)arrlen(labels); i++)
        print_text(out, labels[i].middle, first_row + labels[i].row * LINE + 13, "middle",
                   labels[i].mark->label);
    fprintf(out, "</svg>\n");
    arrfree(labels);
}

static void print_legend(FILE *out, const struct chart *chart) {
    if (chart->series[0].style == CHART_BARS) return;
    fprintf(out, "<ul class=\"legend\">\n");
    for (int i = 0; i < chart->series_count; i++) {
        fprintf(out, "<li>");
        chart_print_swatch(out, chart, &chart->series[i]);
        fprintf(out, "<span>");
        page_names(out, chart->series[i].label);
        fprintf(out, "</span></li>\n");
    }
    fprintf(out, "</ul>\n");
}

void chart_print(FILE *out, const struct chart *chart) {
    struct chart_area area;
    fprintf(out, "<figure>\n<figcaption>");
    page_text(out, chart->title);
    fprintf(out, "</figcaption>\n");
    if (make_axes(&area, chart)) {
        print_legend(out, chart);
        print_svg(out, chart, &area);
    } else fprintf(out, "<p>Nothing to draw: there is no finite value.</p>\n");
    fprintf(out, "</figure>\n");
}
