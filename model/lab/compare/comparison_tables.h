/* The contents of a report, the same for terminal, Markdown and page. */
#pragma once

#include "model/lab/compare/comparison_report.h"
#include "model/page/table.h"

/* Tables, most with a row for each group. */
enum comparison_part {
    COMPARISON_LOSSES,
    COMPARISON_GRADIENTS,
    COMPARISON_SCALE, /* fp16, or skips */
    COMPARISON_SPEED,
    COMPARISON_PROFILE, /* profile.json */
    COMPARISON_NOISE,   /* several seeds */
    COMPARISON_CHECKS,
    COMPARISON_LIMITS,
    COMPARISON_PARTS
};

struct comparison_section {
    const char *heading;
    struct table table;
    char *note; /* explains the figures, in sentences; or NULL */
};

/* Table and note are to be freed. The table has no rows where there is nothing to say. */
struct comparison_section comparison_section_make(const struct comparison_report *report,
                                                  enum comparison_part part);

/* The differences of the configs, to be freed; without rows where only the precision differs. */
struct table comparison_table_configs(const struct comparison_report *report);
const char *comparison_config_sentence(const struct comparison_report *report);

/* "600 steps, 3 seeds": those of the comparison with the fewest of them; returns text. */
enum { COMPARISON_EXTENT_MAX = 80 };
const char *comparison_extent(char text[COMPARISON_EXTENT_MAX],
                              const struct comparison_report *report);

/* A loss scale: "2^16", or a number that is no power of two; returns text. */
enum { SCALE_TEXT_MAX = 32 };
const char *scale_text(char text[SCALE_TEXT_MAX], double scale);

/* The first run of a group that has a profile.json, or NULL. */
const struct run_record *profiled_run(const struct run_group *group);
