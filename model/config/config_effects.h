/* Effects of keys: those that a run does not read, and those that differ between two configs, as
 * the columns used_if and changes of config_table.inc declare them. */
#pragma once

#include <stdio.h>

#include "model/config/config_keys.h"

/* Returns why the key has no effect in this config, or NULL if it has one. */
const char *config_unused_reason(const struct config *config, const struct config_option *option);

/* Warns of each key that was set but has no effect: set by a flag, or to another value than the
 * default by a file, because configs of checkpoints repeat all defaults. device and precision
 * should be resolved. out: see note.h. */
void config_unused(const struct config *config, FILE *out);

/* Stores the rows that both configs use with different values, in the order of the table. Returns
 * their number. */
int config_changed_rows(const struct config_option *rows[CONFIG_OPTION_LIMIT],
                        const struct config *before, const struct config *now);
