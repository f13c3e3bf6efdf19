/* A comparison for the terminal, and as Markdown. */
#ifndef MODEL_LAB_COMPARE_COMPARISON_TEXT_H
#define MODEL_LAB_COMPARE_COMPARISON_TEXT_H

#include <stdio.h>

#include "model/lab/compare/comparison_report.h"

/* 80 columns. */
void comparison_print_text(FILE *out, const struct comparison_report *report);
void comparison_print_markdown(FILE *out, const struct comparison_report *report);

#endif
