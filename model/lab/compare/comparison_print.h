/* Output of a comparison: text for the terminal, Markdown, an HTML page, and JSON. */
#pragma once

#include <stdio.h>

#include "model/lab/compare/comparison_report.h"
#include "model/page/page.h"

/* Prints a struct comparison_report. With gnuplot, text has one chart and HTML has all. */
void comparison_print(FILE *out, const void *report, enum page_form form);

/* Prints the charts: in text only that of the differences of the training losses. */
void comparison_charts_print(const struct page *page, const struct comparison_report *report);

/* Returns the report as an object, to be deleted. json.md lists its members. */
struct cJSON *comparison_json(const struct comparison_report *report);
