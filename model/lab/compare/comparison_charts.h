/* The charts of a report. */
#pragma once

#include <stdio.h>

#include "model/lab/compare/comparison_report.h"

/* All charts, one after the other, for a page. */
void comparison_charts_print(FILE *out, const struct comparison_report *report);

/* The differences of the training losses, for a terminal of 80 columns. */
void comparison_charts_print_text(FILE *out, const struct comparison_report *report);
