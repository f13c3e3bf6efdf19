/* JSON, strictly (RFC 8259): where everything stands in a text, small files that hold an object,
 * and members of objects. What configs, checkpoints, safetensors headers and Hugging Face configs
 * share.
 *
 * cJSON gives the values. It takes more than JSON and tells no lines, so a pass of our own decides
 * what is accepted and writes the messages. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/base/error.h"

struct cJSON;

enum { JSON_DEPTH_MAX = 16, JSON_EXCERPT_MAX = 72, JSON_FILE_MAX_BYTES = 4 << 20 };

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

struct json_file {
    char *text; /* [size], and a NUL */
    size_t size;
    struct cJSON *root; /* an object */
};

/* Reads a file that holds one JSON object, in UTF-8, and nothing else. A failure names the file,
 * and line and column where the text is not JSON; then there is nothing to close, though closing is
 * harmless. */
int json_file_open(struct json_file *file, const char *path, struct error *error);
void json_file_close(struct json_file *file);

/* The member of that name; NULL when there is none or more than one, or when object is NULL or no
 * object. */
const struct cJSON *json_member(const struct cJSON *object, const char *key);

/* The member's value when it is a whole number from minimum to maximum (at most 2^53); else
 * false. */
bool json_whole(int64_t *value, const struct cJSON *object, const char *key, int64_t minimum,
                int64_t maximum);
