/* What is drawn between the axes of a chart. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "model/lab/page/chart.h"
#include "model/lab/page/chart_axis.h"

/* A rectangle of the picture, in its units, and what its sides stand for. */
struct chart_area {
    double left, top, right, bottom;
    struct axis x, y;
};

double chart_x(const struct chart_area *area, double x);
double chart_y(const struct chart_area *area, double y);

/* Whether y has a place on such an axis. */
bool chart_shows(enum axis_kind kind, double y);

void chart_print_series(FILE *out, const struct chart *chart, const struct chart_area *area);

/* The small picture of a line in the legend. */
void chart_print_swatch(FILE *out, const struct chart *chart, const struct chart_series *series);
