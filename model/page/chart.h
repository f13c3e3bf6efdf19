/* Charts drawn by gnuplot, as SVG on an HTML page or as text.
 *
 * Untrusted text is passed to gnuplot only in single-quoted strings, without quotes. */
#pragma once

#include <stdbool.h>

#include "model/page/page.h"

enum { CHART_SERIES_MAX = 8 };

/* A series of `count` points. Each x must be finite and x ascends; a y that is not finite breaks
 * the line. If there are more points than columns in the picture, each column shows its smallest
 * and largest y, so that spikes stay visible. */
struct chart_series {
    const char *label;
    const double *x, *y;
    int count;
    int colour; /* 0..CHART_SERIES_MAX-1, so that a series has the same colour in every chart */
};

struct chart {
    const char *title; /* also the description for screen readers */
    const char *x_label, *y_label;
    const struct chart_series *series;
    int series_count;
    bool steps;          /* horizontal and vertical lines, for values that stay until they change */
    bool log_y;          /* logarithmic y axis if values span a decade; y <= 0 breaks the line */
    bool power_of_two_y; /* logarithmic y axis to base 2 with ticks 2^k, for loss scales */
    bool zero_y;         /* a linear y axis includes 0 */
    double shaded_to;    /* points up to this x are on a grey ground, with `shaded`; 0: none */
    const char *shaded;
};

/* Returns a sentence that explains why there are no charts, or NULL if gnuplot works. The test run
 * is made once per process. */
const char *chart_problem(void);

/* Adds the chart to a page: a figure in HTML, characters in text, nothing in Markdown or without
 * gnuplot. A chart without a finite point is replaced by a sentence. */
void chart_print(const struct page *page, const struct chart *chart);
