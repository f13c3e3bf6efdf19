/* The report of an audit. Its figures are one JSON object, which audit.json and audit_fp8.json hold
 * as it is; the terminal and the HTML page show the same tables, made from that object.
 *
 * README.md names the members of both files. */
#pragma once

#include <stdio.h>

struct audit;
struct cJSON;

/* Returns the report of bf16 and fp16 with its advice, which the caller deletes. */
struct cJSON *audit_report(const struct audit *audit);

/* Prints a report as JSON. */
void report_print_json(FILE *out, const struct cJSON *report);

/* Prints it within 80 columns, for each kind of tensor the worst layer. */
void report_print_text(FILE *out, const struct cJSON *report);

/* Prints it as a page, with every layer. */
void report_print_html(FILE *out, const struct cJSON *report);
