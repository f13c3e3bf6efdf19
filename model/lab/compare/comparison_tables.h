/* The tables of a report, the same for terminal, Markdown and page. Each is to be freed with
 * table_free, and may be without rows where there is nothing to say. */
#ifndef MODEL_LAB_COMPARE_COMPARISON_TABLES_H
#define MODEL_LAB_COMPARE_COMPARISON_TABLES_H

#include "model/lab/compare/comparison_report.h"
#include "model/lab/page/table.h"

struct table comparison_table_losses(const struct comparison_report *report);
struct table comparison_table_gradients(const struct comparison_report *report);
struct table comparison_table_scale(const struct comparison_report *report); /* fp16, or skips */
struct table comparison_table_speed(const struct comparison_report *report);
struct table comparison_table_noise(const struct comparison_report *report);   /* several seeds */
struct table comparison_table_profile(const struct comparison_report *report); /* profile.json */
struct table comparison_table_checks(const struct comparison_report *report);
struct table comparison_table_limits(const struct comparison_report *report);

/* What the configs differ by; without rows where that is nothing but the precision. */
struct table comparison_table_configs(const struct comparison_report *report);
const char *comparison_config_sentence(const struct comparison_report *report);

/* How the figures are meant, as sentences; returns text. */
enum { COMPARISON_NOTE_MAX = 800 };
const char *comparison_note_losses(char text[COMPARISON_NOTE_MAX],
                                   const struct comparison_report *report);
/* "" where no comparison has a noise, which takes two pairs. */
const char *comparison_note_noise(char text[COMPARISON_NOTE_MAX],
                                  const struct comparison_report *report);

/* "600 steps, 3 seeds": what the comparison with the fewest of them really used; returns text. */
enum { COMPARISON_EXTENT_MAX = 80 };
const char *comparison_extent(char text[COMPARISON_EXTENT_MAX],
                              const struct comparison_report *report);

/* A loss scale: "2^16", or a number that is no power of two; returns text. */
enum { SCALE_TEXT_MAX = 32 };
const char *scale_text(char text[SCALE_TEXT_MAX], double scale);

/* The first run of a group that has a profile.json, or NULL. */
const struct run_record *profiled_run(const struct run_group *group);

#endif
