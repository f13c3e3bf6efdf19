/* What a mistyped key or name was meant to be. */
#pragma once

#include <stddef.h>

/* The row most like name[0..length), a mistyped key: few edits away from its path or from its
 * last part, or containing it; -1 if none is close. block (or -1) is preferred among equals. */
int config_nearest_option(const char *name, size_t length, int block);
int config_nearest_block(const char *name, size_t length);

/* The most similar of count texts, -1 if none is close to name[0..length). */
int config_nearest_text(const char *const *texts, int count, const char *name, size_t length);
