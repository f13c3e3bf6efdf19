/* Names that a mistyped one may stand for. */
#pragma once

#include <stddef.h>

enum {
    NEAREST_NAME_MAX = 64 /* bytes; longer names are no typing mistakes */,
    NEAREST_NONE = 1000
};

/* Returns the edit distance of two names of at most NEAREST_NAME_MAX bytes: insertions, deletions,
 * replacements and swaps of neighbors, without regard to case. */
int nearest_edits(const char *a, int a_length, const char *b, int b_length);

/* Returns the edit distance of name[0..length) and text, or NEAREST_NONE if it is too large for a
 * typing mistake. A name contained in the other one is close: "batch_size" in "micro_batch_size".
 */
int nearest_distance(const char *name, size_t length, const char *text);

/* Returns the index of the closest of count texts, or -1 if none is close. */
int nearest_text(const char *const *texts, int count, const char *name, size_t length);
