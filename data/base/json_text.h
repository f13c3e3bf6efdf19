/* The text of a config file, before it has a meaning: strict JSON (RFC 8259), and where everything
 * stands in it. cJSON then gives the values. It takes more than JSON and tells no lines, so this
 * pass decides what is accepted and writes the messages. */
#ifndef DATA_BASE_JSON_TEXT_H
#define DATA_BASE_JSON_TEXT_H

#include <stddef.h>

#include "data/base/error.h"

enum { JSON_DEPTH_MAX = 16, JSON_EXCERPT_MAX = 72 };

/* One value of the text. */
struct json_place {
    size_t line;          /* from 1; of the key for a member of an object */
    size_t start, length; /* of the value, in bytes */
};

/* Checks that text[0..length) is one JSON value in UTF-8 with nothing after it, nested at most
 * JSON_DEPTH_MAX deep, without NUL, and appends the place of each value to *places (an stb_ds
 * array, freed by the caller also after a failure). Values come in the order of the text, an object
 * or array before its members: the order of a walk through cJSON's tree.
 * A failure's message begins with "FILE:LINE:COLUMN: ". */
int json_text_scan(const char *text, size_t length, const char *file, struct json_place **places,
                   struct error *error);

/* Copies text[0..length) to excerpt for use in a message: cut at JSON_EXCERPT_MAX bytes with
 * "...", control characters as spaces, invalid UTF-8 as '?'. Returns excerpt. */
const char *json_text_excerpt(char excerpt[JSON_EXCERPT_MAX], const char *text, size_t length);

/* The same as a value, for use among the arguments of fail(). */
struct json_shown {
    char text[JSON_EXCERPT_MAX];
};
struct json_shown json_text_shown(const char *text);

#endif
