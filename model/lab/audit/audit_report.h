/* The report of an audit: one JSON object, written to audit.json or audit_PRECISION.json. The
 * terminal and the page of scripts/report.py show tables made from that object.
 *
 * json.md names the members of both files. */
#pragma once

#include <stdio.h>

struct audit;
struct cJSON;

/* Returns the report of bf16 and fp16, with advice; the caller deletes it. */
struct cJSON *audit_report(const struct audit *audit);

/* Prints a report in 80 columns: the worst layer of each kind of tensor. */
void audit_print(FILE *out, const struct cJSON *report);
