/* A chart as data: series of points, marks, and what the axes are. */
#ifndef MODEL_LAB_PAGE_CHART_H
#define MODEL_LAB_PAGE_CHART_H

#include <stdbool.h>

enum { CHART_SERIES_MAX = 8 };

enum chart_style { CHART_LINE, CHART_DASHED, CHART_POINTS, CHART_STEPS, CHART_BARS };

/* count points; a y that is not finite breaks the line, an x must be finite. x ascends. Bars stand
 * on the axis, each as wide as the smallest distance of two x; those of several series are drawn
 * side by side. More points than the picture has columns are thinned out to the smallest and the
 * largest y of each column, so that no spike is lost. */
struct chart_series {
    const char *label; /* NULL: not in the legend */
    const double *x, *y;
    int count;
    enum chart_style style;
    int colour; /* 0..CHART_SERIES_MAX-1: the same number has the same colour and marker in every
                 * chart */
};

/* A place on the x axis worth a word: a vertical line with a label, or, if to > from, a shaded
 * stretch. What lies beyond the axis is left out; labels stand above the plot, in rows. */
struct chart_mark {
    double from, to;
    const char *label; /* optional */
};

struct chart {
    const char *title; /* also what a screen reader says */
    const char *x_label, *y_label;
    const struct chart_series *series;
    int series_count;
    const struct chart_mark *marks;
    int mark_count;
    bool log_y;          /* logarithmic, base 10; y that is not above 0 breaks the line */
    bool power_of_two_y; /* logarithmic, base 2, ticks written 2^k: for loss scales */
    bool zero_y;         /* the y axis includes 0 */
};

#endif
