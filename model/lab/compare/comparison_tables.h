/* Tables and sentences of a report, the same for text, Markdown and HTML. */
#pragma once

#include "model/lab/compare/comparison_report.h"
#include "model/page/table.h"

/* Sections of a report. Most tables have one row per group. */
enum comparison_part {
    COMPARISON_LOSSES,
    COMPARISON_GRADIENTS,
    COMPARISON_SCALE, /* with loss scaling or skipped steps */
    COMPARISON_SPEED,
    COMPARISON_PROFILE, /* with profile.json */
    COMPARISON_NOISE,   /* with several seeds */
    COMPARISON_CHECKS,
    COMPARISON_LIMITS,
    COMPARISON_PARTS
};

struct comparison_section {
    const char *heading;
    struct table table;
    char *note; /* sentences that explain the figures, or NULL */
};

/* Makes a section; its table and note are to be freed. An empty section has a table without rows.
 */
struct comparison_section comparison_section_make(const struct comparison_report *report,
                                                  enum comparison_part part);

/* Returns the differences of the configs, to be freed. It has no rows if only the precision
 * differs. */
struct table comparison_table_configs(const struct comparison_report *report);
const char *comparison_config_sentence(const struct comparison_report *report);

/* Writes "600 steps, 3 seeds", or "at least" if comparisons differ. Returns text. */
enum { COMPARISON_EXTENT_MAX = 80 };
const char *comparison_extent(char text[COMPARISON_EXTENT_MAX],
                              const struct comparison_report *report);

/* Writes a loss scale: "2^16", or a plain number if it is not a power of two. Returns text. */
enum { SCALE_TEXT_MAX = 32 };
const char *scale_text(char text[SCALE_TEXT_MAX], double scale);

/* Returns the first run of a group that has a profile.json, or NULL. */
const struct run_record *profiled_run(const struct run_group *group);
