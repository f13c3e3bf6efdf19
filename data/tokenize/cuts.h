/* Where a text may be cut so that its parts become the same tokens as the whole.
 *
 * The pattern of GPT-2 takes white space only at the beginning of a piece and looks ahead only
 * behind white space, so no piece goes from a character that is no white space into one that is,
 * and none depends on what lies beyond: there is a cut. Taken are those before a space, tab or line
 * break, behind a character that is certainly no white space in any edition of Unicode. Other
 * patterns have fewer such places: of a space alone, for instance, or none. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { CUT_NONE = 0 };

/* The white space before which text may be cut for GPT-2; others have a part of it. */
#define CUT_SPACES " \n\r\t"

/* Whether text[0 .. size) may be cut before text[at], which has to be among `spaces`; at is in
 * 1 .. size - 1. */
bool cut_is_safe(const char *text, size_t size, size_t at, const char *spaces);

/* The last such place in low .. high, which are in 1 .. size - 1, or CUT_NONE. */
size_t cut_last(const char *text, size_t size, size_t low, size_t high, const char *spaces);

/* The first such place in low .. high, or CUT_NONE. */
size_t cut_first(const char *text, size_t size, size_t low, size_t high, const char *spaces);

/* The last place in 1 .. at that does not tear a UTF-8 character; at itself if there is none near,
 * which is so in what is no UTF-8. */
size_t cut_between_characters(const char *text, size_t size, size_t at);
