/* Strict UTF-8: no overlong forms, no UTF-16 surrogates, nothing above U+10FFFF (The Unicode
 * Standard, table 3-7). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the size of the first character of text, 1 to 4 bytes; 0 if the `size` bytes at text (at
 * least one) do not begin with a complete character. A NUL is a character of one byte. */
size_t utf8_character(const void *text, size_t size);

/* True if the bytes are complete characters only; true for size 0. */
bool utf8_valid(const void *text, size_t size);

/* Returns the end of the run of complete characters at text[at .. size). */
size_t utf8_skip_characters(const void *text, size_t size, size_t at);

/* Returns the end of the run of bytes that are no characters. */
size_t utf8_skip_invalid(const void *text, size_t size, size_t at);

/* True for a character (complete, `count` bytes) that a terminal interprets or that reorders text:
 * a control character except \n and \t, or a bidirectional one. */
bool utf8_is_control(const void *character, size_t count);

/* Replaces control characters, and bytes that are not characters, by '?', so that text from a file
 * can be printed safely: names and texts of files reach a terminal only so. Returns text. */
char *utf8_mask(char *text);

/* True if text ends with `end`. */
bool text_ends(const char *text, const char *end);

/* Returns the number of characters of valid UTF-8. */
int64_t utf8_count(const char *text, size_t size);

/* White space at both ends of valid UTF-8, as str.strip of Python sees it: characters with the
 * property White_Space, and U+001C to U+001F. Return the number of bytes of white space at the
 * beginning, and the size of the text without white space at its end. */
size_t utf8_skip_space(const char *text, size_t size);
size_t utf8_trim_end(const char *text, size_t size);

/* utf8_code decodes a complete character of `count` bytes; utf8_write encodes a code point and
 * returns its size, 1 to 4 bytes. */
uint32_t utf8_code(const void *character, size_t count);
size_t utf8_write(void *character, uint32_t code);
