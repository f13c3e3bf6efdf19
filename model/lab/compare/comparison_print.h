/* Output of a comparison: JSON, and text for the terminal made from it. */
#pragma once

#include <stdio.h>

#include "model/lab/compare/comparison_report.h"

/* Returns the report as an object, to be deleted. json.md lists its members. */
struct cJSON *comparison_json(const struct comparison_report *report);

/* Prints that object. */
void comparison_print(FILE *out, const struct cJSON *report);
