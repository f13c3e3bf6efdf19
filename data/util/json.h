/* JSON, strictly (RFC 8259): the one reader for configs, checkpoints, safetensors headers,
 * tokenizers and rows of training text.
 *
 * json_parse makes a cJSON tree whose items know where they are in the text. json_scan_* check the
 * same grammar without a tree. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"

struct cJSON;

/* A value takes up to 112 bytes of memory, and may be two bytes of text. */
enum {
    JSON_DEPTH_MAX = 16,
    JSON_VALUES_MAX = 4000000,
    JSON_EXCERPT_MAX = 72,
    JSON_FILE_MAX_BYTES = 4 << 20
};

/* Parses text[0..size), one JSON value in UTF-8 with nothing after it. A NUL follows the text.
 * *root is for cJSON_Delete, and NULL on failure. A failure's message begins with
 * "WHERE:LINE:COLUMN: ". Beyond the grammar, these are failures: a key that an object has twice,
 * \u0000, half a surrogate pair, and more depth or values than the limits. */
int json_parse(struct cJSON **root, const char *text, size_t size, const char *where,
               struct error *error);

/* Line, from 1, of an item of a tree that json_parse made: of its key if it has one. */
size_t json_line(const struct cJSON *item, const char *text);

/* Returns the text of the item's value, and its length. */
const char *json_source(const struct cJSON *item, const char *text, size_t *length);

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

/* Reads a file that holds one JSON object. A failure names the file, and line and column where the
 * text is not JSON; then there is nothing to close, though closing is harmless. */
int json_file_open(struct json_file *file, const char *path, struct error *error);
void json_file_close(struct json_file *file);

/* The member of that name; NULL when there is none, or when object is NULL or no object. */
const struct cJSON *json_member(const struct cJSON *object, const char *key);

/* The member's value when it is a whole number from minimum to maximum (at most 2^53); else
 * false. */
bool json_whole(int64_t *value, const struct cJSON *object, const char *key, int64_t minimum,
                int64_t maximum);

struct json_span {
    const char *begin, *end;
};

/* A text being read from `at`. Functions return false when the text is not what they read; then
 * `at` is the place of the problem. */
struct json_scan {
    const char *text, *at, *end;
    int depth, depth_max;
    char problem[400];

    /* For json_parse. */
    bool has_tree;
    size_t value_count;
    struct json_item **members; /* stb_ds array, scratch */
};

/* Skips white space. Returns the next byte, or 0 at the end. */
char json_scan_peek(struct json_scan *scan);

/* Reads a string between its quotes, a key and its colon, or any value. */
bool json_scan_string(struct json_scan *scan, struct json_span *string);
bool json_scan_key(struct json_scan *scan, struct json_span *key);
bool json_scan_value(struct json_scan *scan);

/* Fails because `expected`, such as "a comma", is not at the next byte; or for the reason given. */
bool json_scan_expected(struct json_scan *scan, const char *expected);
bool json_scan_refuse(struct json_scan *scan, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Column of a scan's place in its line, in characters from 1. */
size_t json_scan_column(const struct json_scan *scan);
