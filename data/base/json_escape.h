/* The escapes of JSON strings, done and undone. What is to be undone is known to be a valid
 * string. */
#pragma once

#include <stddef.h>
#include <stdio.h>

/* 0 .. 15, or -1. */
int json_hex_digit(char c);

/* Undoes the escape at *at, which is past it afterwards. Returns the bytes of its character in
 * UTF-8. Two escapes that are a surrogate pair are one character; half of one becomes U+FFFD. */
size_t json_unescape(const char **at, const char *end, char out[4]);

/* Undoes all escapes of string[0 .. size) in place. Returns the new size: a character is never
 * longer than its escape. */
size_t json_unescape_all(char *string, size_t size);

/* Prints text in the quotes and escapes of JSON. */
void json_print_string(FILE *out, const char *text);
