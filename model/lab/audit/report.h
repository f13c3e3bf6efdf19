/* The report of an audit: one JSON object, written to audit.json or audit_PRECISION.json. The
 * terminal and the HTML page show tables made from that object.
 *
 * json.md names the members of both files. */
#pragma once

#include <stdio.h>

#include "model/page/page.h"

struct audit;
struct cJSON;

/* Returns the report of bf16 and fp16, with advice; the caller deletes it. */
struct cJSON *audit_report(const struct audit *audit);

/* Prints the report, a struct cJSON. Text has 80 columns and the worst layer of each kind of
 * tensor, HTML every layer. */
void report_print(FILE *out, const void *report, enum page_form form);
