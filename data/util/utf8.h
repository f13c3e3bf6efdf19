/* UTF-8, strictly: no overlong forms, no UTF-16 surrogates, nothing above U+10FFFF (The Unicode
 * Standard, table 3-7). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character that text begins with, 1 to 4; 0 if the `size` bytes at text (at least
 * one) begin with no whole character. A NUL is a character of one byte. */
size_t utf8_character(const void *text, size_t size);

/* True if the bytes are whole characters only; true for size 0. */
bool utf8_valid(const void *text, size_t size);

/* Returns the end of the whole characters at text[at .. size); of the bytes there that are no
 * characters. */
size_t utf8_skip_characters(const void *text, size_t size, size_t at);
size_t utf8_skip_others(const void *text, size_t size, size_t at);

/* True if a terminal obeys the whole character of `count` bytes, or it changes the order in which
 * text is shown: a control character but \n and \t, or a bidirectional one. */
bool utf8_is_control(const void *character, size_t count);

/* Replaces controls, and bytes that are no character, by '?', so that text from a file can be
 * printed. Returns text. */
char *utf8_mask(char *text);

/* The code point of a whole character of `count` bytes, and a code point's bytes, 1 to 4. */
uint32_t utf8_code(const void *character, size_t count);
size_t utf8_write(void *character, uint32_t code);
