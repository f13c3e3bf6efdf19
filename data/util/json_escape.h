/* Escapes of JSON strings. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Returns the code point of the escape at *at, and moves *at past it. A surrogate pair of two
 * escapes gives one code point; an unpaired surrogate gives itself. Returns -1, with *at unchanged,
 * if there is no valid escape. */
int json_escape_code(const char **at, const char *end);

/* The same for a valid escape, with U+FFFD for an unpaired surrogate. */
uint32_t json_escape_character(const char **at, const char *end);

/* Decodes the escapes of string[0 .. size), which must be valid, in place. Returns the new size: no
 * character is longer than its escape. */
size_t json_unescape(char *string, size_t size);

/* Prints text as a JSON string, with quotes and escapes. */
void json_print_string(FILE *out, const char *text);
