#include "model/lab/page/chart_series.h"

#include <math.h>
#include <stdlib.h>

#include <stb/stb_ds.h>

double chart_x(const struct chart_area *area, double x) {
    return area->left + axis_place(&area->x, x) * (area->right - area->left);
}

double chart_y(const struct chart_area *area, double y) {
    return area->bottom - axis_place(&area->y, y) * (area->bottom - area->top);
}

bool chart_shows(enum axis_kind kind, double y) {
    return isfinite(y) && (kind == AXIS_LINEAR || y > 0);
}

/* ---- points in the picture, thinned out */

struct point {
    double x, y; /* y is NAN where the line breaks */
};

/* What falls into one column of the picture. */
struct column {
    bool any, broken;
    long at;
    struct point low, high;
};

static void end_column(struct point **points, struct column *column) {
    struct point first = column->low, second = column->high;
    if (second.x < first.x) first = column->high, second = column->low;
    if (column->any) arrput(*points, first);
    if (column->any && (second.x != first.x || second.y != first.y)) arrput(*points, second);
    if (column->broken) arrput(*points, ((struct point){0, NAN}));
    column->any = column->broken = false;
}

static void add_to_column(struct column *column, struct point point) {
    if (isnan(point.y)) column->broken = true;
    else if (!column->any) {
        column->low = column->high = point;
        column->any = true;
    } else if (point.y < column->low.y) column->low = point;
    else if (point.y > column->high.y) column->high = point;
}

/* Returns an stb_ds array. */
static struct point *place(const struct chart_series *series, const struct chart_area *area) {
    struct point *points = NULL;
    bool thin = series->count > area->right - area->left;
    struct column column = {0};
    for (int i = 0; i < series->count; i++) {
        bool shown = chart_shows(area->y.kind, series->y[i]);
        struct point point = {chart_x(area, series->x[i]),
                              shown ? chart_y(area, series->y[i]) : NAN};
        long at = thin ? (long)floor(point.x) : i;
        if (at != column.at) end_column(&points, &column);
        column.at = at;
        add_to_column(&column, point);
    }
    end_column(&points, &column);
    return points;
}

/* ---- markers: a shape for each colour, for readers and printers without colours */

static const char *const shapes[CHART_SERIES_MAX] = {
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",
    "M-2.7-2.7h5.4v5.4h-5.4z",
    "M0-3.8L3.6 2.8H-3.6z",
    "M0-4L4 0L0 4L-4 0z",
    "M0 3.8L3.6-2.8H-3.6z",
    "M-1.2-3.6h2.4v2.4h2.4v2.4h-2.4v2.4h-2.4v-2.4h-2.4v-2.4h2.4z",
    "M0-3.8L3.3-1.9V1.9L0 3.8L-3.3 1.9V-1.9z",
    "M-3.6-3.3L3.6 3.3V-3.3L-3.6 3.3z",
};

static void print_marker(FILE *out, int colour, double x, double y) {
    fprintf(out, "<path class=\"dot\" transform=\"translate(%.1f %.1f)\" d=\"%s\"/>\n", x, y,
            shapes[colour]);
}

/* Lines of several colours carry a few markers. */
static bool has_markers(const struct chart *chart) {
    return chart->series_count > 1;
}

/* About MARKERS of the points, others in each series: where lines are equal, all are seen. */
static void print_markers(FILE *out, const struct chart *chart, const struct chart_series *series,
                          const struct point *points) {
    enum { MARKERS = 5 };
    int lines = chart->series_count, nth = (int)(series - chart->series);
    int count = (int)arrlen(points), apart = count / MARKERS > lines ? count / MARKERS : lines;
    for (int i = nth * apart / lines; i < count; i += apart)
        if (!isnan(points[i].y)) print_marker(out, series->colour, points[i].x, points[i].y);
}

/* ---- lines */

/* A line that goes up and down all the time is drawn finer, so that others are seen behind it. */
static bool is_busy(const struct point *points, const struct chart_area *area) {
    double way = 0;
    for (int i = 1; i < (int)arrlen(points); i++)
        if (!isnan(points[i].y) && !isnan(points[i - 1].y))
            way += fabs(points[i].y - points[i - 1].y);
    return way > 5 * (area->bottom - area->top);
}

static void print_line(FILE *out, const struct point *points, enum chart_style style, bool busy) {
    fprintf(out, "<path class=\"line%s\" d=\"", busy ? " busy" : "");
    for (int i = 0; i < (int)arrlen(points); i++) {
        if (isnan(points[i].y)) continue;
        if (i == 0 || isnan(points[i - 1].y)) fprintf(out, "M%.1f %.1f", points[i].x, points[i].y);
        else if (style == CHART_STEPS) fprintf(out, "H%.1fV%.1f", points[i].x, points[i].y);
        else fprintf(out, "L%.1f %.1f", points[i].x, points[i].y);
    }
    fprintf(out, "\"/>\n");
}

/* A point between two breaks would be no line at all. */
static void print_lonely(FILE *out, const struct point *points, int colour) {
    int count = (int)arrlen(points);
    for (int i = 0; i < count; i++)
        if (!isnan(points[i].y) && (i == 0 || isnan(points[i - 1].y)) &&
            (i == count - 1 || isnan(points[i + 1].y)))
            print_marker(out, colour, points[i].x, points[i].y);
}

/* ---- bars */

static void print_bars(FILE *out, const struct chart_area *area, const struct point *points) {
    double width = chart_x(area, area->x.from + 1) - area->left, ground = chart_y(area, 0);
    for (int i = 0; i < (int)arrlen(points); i++)
        if (!isnan(points[i].y))
            fprintf(out,
                    "<rect class=\"bar\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>\n",
                    points[i].x - 0.45 * width, points[i].y, fmax(0.9 * width, 0.5),
                    ground - points[i].y);
}

void chart_print_series(FILE *out, const struct chart *chart, const struct chart_area *area) {
    struct point *points[CHART_SERIES_MAX];
    for (int i = 0; i < chart->series_count; i++) {
        const struct chart_series *series = &chart->series[i];
        points[i] = place(series, area);
        fprintf(out, "<g class=\"s%d\">\n", series->colour);
        if (series->style == CHART_BARS) print_bars(out, area, points[i]);
        else print_line(out, points[i], series->style, is_busy(points[i], area));
        fprintf(out, "</g>\n");
    }
    /* Over all the lines. */
    for (int i = 0; i < chart->series_count; i++) {
        const struct chart_series *series = &chart->series[i];
        fprintf(out, "<g class=\"s%d\">\n", series->colour);
        if (series->style != CHART_BARS) print_lonely(out, points[i], series->colour);
        if (has_markers(chart)) print_markers(out, chart, series, points[i]);
        fprintf(out, "</g>\n");
        arrfree(points[i]);
    }
}

void chart_print_swatch(FILE *out, const struct chart *chart, const struct chart_series *series) {
    fprintf(out, "<svg class=\"s%d\" viewBox=\"0 0 28 12\" aria-hidden=\"true\">", series->colour);
    fprintf(out, "<path class=\"line\" d=\"M1 6H27\"/>");
    if (has_markers(chart)) print_marker(out, series->colour, 14, 6);
    fprintf(out, "</svg>");
}
