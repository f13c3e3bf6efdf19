/* Charts as inline SVG for a page (model/lab/page/page.h), which gives them their colours, light
 * and dark. Nothing but text: no scripts, no fonts, no network. */
#pragma once

#include <stdio.h>

#include "model/lab/page/chart.h"

/* Writes a <figure> with an <svg> and its legend. Without a finite point a sentence says so. */
void chart_print(FILE *out, const struct chart *chart);
