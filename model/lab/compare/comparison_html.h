/* A comparison as a page. */
#ifndef MODEL_LAB_COMPARE_COMPARISON_HTML_H
#define MODEL_LAB_COMPARE_COMPARISON_HTML_H

#include <stdio.h>

#include "model/lab/compare/comparison_report.h"

/* One page that needs nothing else, with charts. */
void comparison_print_html(FILE *out, const struct comparison_report *report);

#endif
