/* Output of a comparison: text for the terminal, Markdown, an HTML page, and JSON. */
#pragma once

#include <stdio.h>

#include "model/lab/compare/comparison_report.h"
#include "model/page/page.h"

/* Prints a struct comparison_report. With gnuplot, text has one chart and HTML has all. */
void comparison_print(FILE *out, const void *report, enum page_form form);

/* Prints the charts: in text only that of the differences of the training losses. */
void comparison_charts_print(const struct page *page, const struct comparison_report *report);

/* Returns the report as an object, to be deleted. Unknown values are null.
 *
 *   {"pass": bool, "reference": label, "made_by", "command": text or null, "warnings": [text],
 *    "limits": {"loss_percent", "curve_percent", "norm_percent", "correlation",
 *               "skipped_percent", "partial": bool, "lower_is_fine": bool},
 *    "groups": [{
 *      "label", "verdict": "reference" | "pass" | "fail", "compared": false for the reference,
 *      "precision",
 *      "runs": [{"path", "name", "seed", "steps", "planned_steps"}],
 *      "steps": in common with the reference, "window": steps, "settled_after": step,
 *      "training_loss": number, "training_difference": DIFFERENCE,
 *      "validation_loss": number, "validation_step", "validation_difference": DIFFERENCE,
 *      "curve": DIFFERENCE with "step",
 *      "gradient_norm": DIFFERENCE of the median ratio from 1, with "steps", "zero", "not_finite",
 *                       "correlation", "smoothed_correlation", "median_ratio",
 * "geometric_mean_ratio", "skipped": {"steps", "of", "share", "in_search"}, "not_finite": steps,
 *      "loss_scale": {"first", "last", "smallest", "largest", "changes"} or null,
 *      "tokens_per_s", "speed_up", "memory_bytes", "memory_saving_percent",
 *      "profile": {"step_ms", "products_ms", "operations": {name: ms}} or null,
 *      "checks": [{"name", "outcome": "pass" | "fail" | "noise" | "nothing", "value", "limit",
 *                  "text", "rule"}]}],
 *    "config_differences": [{"key", "weight": "expected" | "arithmetic" | "validation" |
 *                            "training", "values": {label: value or null}}]}
 *
 *   DIFFERENCE: {"percent", "pairs", "scatter", "noise", "margin", "real": bool or null}, see
 *   struct difference. */
struct cJSON *comparison_json(const struct comparison_report *report);
