/* Where a text may be cut so that its parts become the same tokens as the whole.
 *
 * The pattern of GPT-2 takes white space only at the beginning of a piece and looks ahead only
 * behind white space, so no piece goes from a character that is no white space into one that is,
 * and none depends on what lies beyond: there is a cut. Taken are those before a space, tab or line
 * break, behind a character that is certainly no white space in any edition of Unicode. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { CUT_NONE = 0 };

/* Whether text[0 .. size) may be cut before text[at]; at is in 1 .. size - 1. */
bool cut_is_safe(const char *text, size_t size, size_t at);

/* The last such place in low .. high, which are in 1 .. size - 1, or CUT_NONE. */
size_t cut_last(const char *text, size_t size, size_t low, size_t high);

/* The first such place in low .. high, or CUT_NONE. */
size_t cut_first(const char *text, size_t size, size_t low, size_t high);

/* The last place in 1 .. at that does not tear a UTF-8 character; at itself if there is none near,
 * which is so in what is no UTF-8. */
size_t cut_between_characters(const char *text, size_t size, size_t at);
