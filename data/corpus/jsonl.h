/* One row of JSON Lines: an object, of which the texts of some members are wanted.
 *
 * Strict, as RFC 8259 has it: one object and nothing but white space around it, UTF-8, no control
 * bytes in strings, at most 256 objects and arrays inside each other. Escapes are undone exactly,
 * \u0000 and surrogate pairs included; an unpaired surrogate, which is no character, becomes
 * U+FFFD. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "data/util/error.h"

/* A member that is wanted, and its text once it is found. */
struct jsonl_member {
    const char *name;
    char *text; /* [size], in the row */
    size_t size;
};

/* Finds the members [count] of the object in row[0 .. size) and undoes their escapes in place; the
 * rest of row is spoilt. Their names differ. Fails when the row is no such object or lacks one of
 * them, has it twice, or has one that is no string; then row is as it was, and *column says which
 * of its characters the message is about, from 1. */
enum { JSONL_MEMBERS_MAX = 2 };
int jsonl_row(char *row, size_t size, struct jsonl_member *members, int count, size_t *column,
              struct error *error);

/* Whether the object has a member of this name, of whatever kind. What follows it is not read, so
 * the row may be bad all the same. */
bool jsonl_has(const char *row, size_t size, const char *name);

/* Whether there is nothing but white space. */
bool jsonl_is_blank(const char *row, size_t size);
