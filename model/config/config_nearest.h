/* Suggestions for mistyped keys and names. */
#pragma once

#include <stddef.h>

/* Returns the row closest to name[0..length), a mistyped key, or -1 if none is close. A close row
 * is a few edits away in its path or its last part, or contains the name. On a tie rows of `block`
 * win (-1: no preference). */
int config_nearest_option(const char *name, size_t length, int block);
int config_nearest_block(const char *name, size_t length);

/* Returns the index of the closest of count texts, or -1 if none is close to name[0..length). */
int config_nearest_text(const char *const *texts, int count, const char *name, size_t length);
