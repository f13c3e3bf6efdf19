/* One row of JSON Lines: an object, of which the text of one member is wanted.
 *
 * Strict, as RFC 8259 has it: one object and nothing but white space around it, UTF-8, no control
 * bytes in strings, at most 256 objects and arrays inside each other. Escapes are undone exactly,
 * \u0000 and surrogate pairs included; half of a surrogate pair, which is no character, becomes
 * U+FFFD. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "data/base/error.h"

/* Finds the member `field` of the object in row[0 .. size) and undoes its escapes in place: *text,
 * [*text_size], lies in row, the rest of which is spoilt. Fails when the row is no such object or
 * has no such member, more than one, or one that is no string; then row is as it was, and *column
 * says which of its characters the message is about, from 1. */
int jsonl_row(char *row, size_t size, const char *field, char **text, size_t *text_size,
              size_t *column, struct error *error);

/* Whether there is nothing but white space. */
bool jsonl_is_blank(const char *row, size_t size);
