/* Escapes of JSON strings. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Returns the code point of the escape that begins at *at, and moves *at past it. Two escapes that
 * are a surrogate pair give one code point, and half of a pair gives itself. Returns -1, with *at
 * unchanged, if no valid escape begins there. */
int json_escape_code(const char **at, const char *end);

/* The same for an escape that is valid, with U+FFFD for half of a pair. */
uint32_t json_escape_character(const char **at, const char *end);

/* Replaces the escapes of string[0 .. size), which are valid, in place. Returns the new size: no
 * character is longer than its escape. */
size_t json_unescape(char *string, size_t size);

/* Prints text in the quotes and escapes of JSON. */
void json_print_string(FILE *out, const char *text);
