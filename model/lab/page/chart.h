/* A chart as data: series of points, marks, and what the axes are. */
#pragma once

#include <stdbool.h>

enum { CHART_SERIES_MAX = 8 };

enum chart_style { CHART_LINE, CHART_STEPS, CHART_BARS };

/* count points; a y that is not finite breaks the line, an x must be finite. x ascends. Bars are
 * the only series of their chart, without a label, stand on 0 of a linear axis and are 1 wide. More
 * points than the picture has columns are thinned out to the smallest and the largest y of each
 * column, so that no spike is lost. */
struct chart_series {
    const char *label; /* in the legend */
    const double *x, *y;
    int count;
    enum chart_style style;
    int colour; /* 0..CHART_SERIES_MAX-1: the same number has the same colour and marker in every
                 * chart */
};

/* A stretch of the x axis worth a word, from < to: it is shaded. What lies beyond the axis is left
 * out; labels stand above the plot, in rows. */
struct chart_mark {
    double from, to;
    const char *label;
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
    bool zero_y;         /* the y axis, a linear one, includes 0 */
};
