/* Charts drawn by gnuplot, as SVG in an HTML page (model/page/page.h) or as text.
 *
 * Untrusted text is passed to gnuplot only in single-quoted strings, where only the quote is
 * special. Without gnuplot (gnuplot.h) nothing is written. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

enum { CHART_SERIES_MAX = 8 };

enum chart_style { CHART_LINE, CHART_STEPS, CHART_BARS };

/* A series of `count` points. Each x must be finite and x ascends; a y that is not finite breaks
 * the line. Bars are the only series of their chart, have no label and are 1 wide. If there are
 * more points than columns in the picture, each column shows its smallest and largest y, so that
 * spikes stay visible. */
struct chart_series {
    const char *label; /* legend entry */
    const double *x, *y;
    int count;
    enum chart_style style;
    int colour; /* 0..CHART_SERIES_MAX-1: index of colour and marker, the same in every chart */
};

/* Shaded and labelled range of the x axis. from < to; it may extend beyond the points. */
struct chart_mark {
    double from, to;
    const char *label;
};

struct chart {
    const char *title; /* also the description for screen readers */
    const char *x_label, *y_label;
    const struct chart_series *series;
    int series_count;
    const struct chart_mark *marks;
    int mark_count;
    bool log_y;          /* logarithmic y axis if values span a decade; y <= 0 breaks the line */
    bool power_of_two_y; /* logarithmic y axis to base 2 with ticks 2^k, for loss scales */
    bool zero_y;         /* a linear y axis includes 0 */
};

/* Writes a <figure> with an <svg> and a legend. A chart without a finite point is replaced by a
 * sentence. */
void chart_print(FILE *out, const struct chart *chart);

/* Writes the chart as text, `width` columns wide and `height` lines high. */
void chart_print_text(FILE *out, const struct chart *chart, int width, int height);
