/* Charts, drawn by gnuplot: as SVG inside a page (model/page/page.h), or in characters.
 *
 * Text from outside reaches it only in single-quoted strings, in which nothing but the quote has a
 * meaning. Without gnuplot (gnuplot.h) nothing is written. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

enum { CHART_SERIES_MAX = 8 };

enum chart_style { CHART_LINE, CHART_STEPS, CHART_BARS };

/* count points; a y that is not finite breaks the line, an x must be finite. x ascends. Bars are
 * the only series of their chart, without a label, and 1 wide. Of more points than a picture has
 * columns, only the smallest and the largest y of each column are drawn: no spike is lost. */
struct chart_series {
    const char *label; /* in the legend */
    const double *x, *y;
    int count;
    enum chart_style style;
    int colour; /* 0..CHART_SERIES_MAX-1: chooses colour and marker, alike in every chart */
};

/* A shaded and labelled part of the x axis, from < to, which may reach beyond the points. */
struct chart_mark {
    double from, to;
    const char *label;
};

struct chart {
    const char *title; /* also the text for screen readers */
    const char *x_label, *y_label;
    const struct chart_series *series;
    int series_count;
    const struct chart_mark *marks;
    int mark_count;
    bool log_y;          /* logarithmic where the values span a decade; y <= 0 breaks the line */
    bool power_of_two_y; /* logarithmic, base 2, ticks written 2^k: for loss scales */
    bool zero_y;         /* the y axis, a linear one, includes 0 */
};

/* Writes a <figure> with an <svg> and its legend. Without a finite point a sentence says so. */
void chart_print(FILE *out, const struct chart *chart);

/* Writes the chart in characters, `width` columns wide and `height` lines high, likewise. */
void chart_print_text(FILE *out, const struct chart *chart, int width, int height);
