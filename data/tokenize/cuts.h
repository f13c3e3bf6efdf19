/* Positions where a text may be cut without changing its tokens: the tokens of both parts together
 * are those of the whole text.
 *
 * GPT-2's pattern accepts white space only at the beginning of a piece, and looks ahead only after
 * white space. So no piece runs from a character that is not white space into one that is, and none
 * depends on text beyond that position. Cuts are made before a space, tab or line break that
 * follows a character which no version of Unicode counts as white space. Other patterns allow fewer
 * cuts, for example only before a space, or none. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { CUT_NONE = 0 };

/* White space before which text may be cut for GPT-2. Other tokenizers allow a subset. */
#define CUT_SPACES " \n\r\t"

/* True if text[0 .. size) may be cut before text[at], which must be one of `spaces`; at is in 1 ..
 * size - 1. */
bool cut_is_safe(const char *text, size_t size, size_t at, const char *spaces);

/* Returns the last such position in low .. high, which are in 1 .. size - 1, or CUT_NONE. */
size_t cut_last(const char *text, size_t size, size_t low, size_t high, const char *spaces);

/* Returns the first such position in low .. high, or CUT_NONE. */
size_t cut_first(const char *text, size_t size, size_t low, size_t high, const char *spaces);

/* Returns the last position in 1 .. at that does not split a UTF-8 character. Returns `at` itself
 * if there is none nearby, as in bytes that are not UTF-8. */
size_t cut_between_characters(const char *text, size_t size, size_t at);
