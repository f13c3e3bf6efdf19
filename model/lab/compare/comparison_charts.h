/* Charts of a report. */
#pragma once

#include <stdio.h>

#include "model/lab/compare/comparison_report.h"

/* Prints all charts for an HTML page. */
void comparison_charts_print(FILE *out, const struct comparison_report *report);

/* Prints the chart of the differences of the training losses as text, 80 columns wide. */
void comparison_charts_print_text(FILE *out, const struct comparison_report *report);
