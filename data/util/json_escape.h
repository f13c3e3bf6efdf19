/* Writing of JSON strings. */
#pragma once

#include <stddef.h>
#include <stdio.h>

/* Prints text as a JSON string, with quotes and escapes. */
void json_print_string(FILE *out, const char *text);

/* The same for text[0..size), which may contain NUL. All control characters of utf8_is_control are
 * escaped, so the JSON is safe to show on a terminal. Bytes that are no UTF-8 become U+FFFD. */
void json_print_text(FILE *out, const char *text, size_t size);
