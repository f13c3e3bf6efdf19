/* The report of an audit: one JSON object, written to audit.json or audit_fp8.json. The terminal
 * and the HTML page show tables made from that object.
 *
 * README.md names the members of both files. */
#pragma once

#include <stdio.h>

struct audit;
struct cJSON;

/* Returns the report of bf16 and fp16, with advice; the caller deletes it. */
struct cJSON *audit_report(const struct audit *audit);

/* Prints a report as JSON. */
void report_print_json(FILE *out, const struct cJSON *report);

/* Prints it in 80 columns, with the worst layer of each kind of tensor. */
void report_print_text(FILE *out, const struct cJSON *report);

/* Prints it as an HTML page, with every layer. */
void report_print_html(FILE *out, const struct cJSON *report);
