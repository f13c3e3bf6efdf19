/* What a report says, the same for terminal, Markdown and page. */
#pragma once

#include "model/lab/compare/comparison_report.h"
#include "model/lab/page/table.h"

/* Tables, most with a row for each group. Some have no rows where there is nothing to say. */
enum comparison_section {
    COMPARISON_LOSSES,
    COMPARISON_GRADIENTS,
    COMPARISON_SCALE, /* fp16, or skips */
    COMPARISON_SPEED,
    COMPARISON_PROFILE, /* profile.json */
    COMPARISON_NOISE,   /* several seeds */
    COMPARISON_CHECKS,
    COMPARISON_LIMITS
};

/* note: how the figures are meant, as sentences, or NULL. */
typedef void section_printer(FILE *out, const char *heading, const struct table *table,
                             const char *note);

/* Prints the sections first .. last, but for tables without rows. */
void comparison_print_sections(FILE *out, const struct comparison_report *report,
                               enum comparison_section first, enum comparison_section last,
                               section_printer *print);

/* What the configs differ by, to be freed; without rows where that is only the precision. */
struct table comparison_table_configs(const struct comparison_report *report);
const char *comparison_config_sentence(const struct comparison_report *report);

/* "600 steps, 3 seeds": what the comparison with the fewest of them really used; returns text. */
enum { COMPARISON_EXTENT_MAX = 80 };
const char *comparison_extent(char text[COMPARISON_EXTENT_MAX],
                              const struct comparison_report *report);

/* A loss scale: "2^16", or a number that is no power of two; returns text. */
enum { SCALE_TEXT_MAX = 32 };
const char *scale_text(char text[SCALE_TEXT_MAX], double scale);

/* The first run of a group that has a profile.json, or NULL. */
const struct run_record *profiled_run(const struct run_group *group);
