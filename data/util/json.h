/* A strict JSON reader (RFC 8259) for configs, checkpoints, safetensors headers, tokenizers and
 * rows of training text.
 *
 * json_parse makes a cJSON tree whose items store their position in the text. json_scan_* check the
 * same grammar without a tree. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/util/files.h"

struct cJSON;

/* Limits. A value of two bytes of text may take up to 112 bytes of memory. */
enum {
    JSON_DEPTH_MAX = 16,
    JSON_VALUES_MAX = 4000000,
    JSON_EXCERPT_MAX = 72,
    JSON_FILE_MAX_BYTES = 4 << 20
};

/* Parses text[0..size), one JSON value in UTF-8 with nothing after it. A NUL must follow the text.
 * The caller frees *root with cJSON_Delete; it is NULL on failure. Messages begin with
 * "WHERE:LINE:COLUMN: ". Beyond the grammar, these are errors: duplicate keys in an object, \u0000,
 * unpaired surrogates, and more depth or values than the limits. */
int json_parse(struct cJSON **root, const char *text, size_t size, const char *where,
               struct error *error);

/* The same with a lower limit of values, for texts that may be large but have few. */
int json_parse_limited(struct cJSON **root, const char *text, size_t size, size_t values_max,
                       const char *where, struct error *error);

/* Returns the line, from 1, of an item of json_parse's tree: of its key if it has one. */
size_t json_line(const struct cJSON *item, const char *text);

/* Returns the source text of the item's value, and its length. */
const char *json_source(const struct cJSON *item, const char *text, size_t *length);

/* Copies text[0..length) to excerpt for use in a message. It is cut at JSON_EXCERPT_MAX bytes with
 * "...", control characters become spaces, and invalid UTF-8 becomes '?'. Returns excerpt. */
const char *json_text_excerpt(char excerpt[JSON_EXCERPT_MAX], const char *text, size_t length);

/* The same, returned by value, for use among the arguments of fail(). */
struct json_shown {
    char text[JSON_EXCERPT_MAX];
};
struct json_shown json_text_shown(const char *text);

struct json_file {
    char *text; /* [size], followed by a NUL */
    size_t size;
    struct cJSON *root;         /* always an object */
    char where[FILE_SHOWN_MAX]; /* the path, for messages */
};

/* Reads a file that holds one JSON object. Messages name the file, and line and column for syntax
 * errors. On failure there is nothing to close, though closing is harmless. */
int json_file_open(struct json_file *file, const char *path, struct error *error);
void json_file_close(struct json_file *file);

/* Returns the member of that name; NULL if there is none, or if object is NULL or not an object. */
const struct cJSON *json_member(const struct cJSON *object, const char *key);

/* Reads a member that is an integer from minimum to maximum (at most 2^53). Returns false
 * otherwise. */
bool json_whole(int64_t *value, const struct cJSON *object, const char *key, int64_t minimum,
                int64_t maximum);

struct json_span {
    const char *begin, *end;
};

/* A text that is scanned from `at`. Functions return false if the text does not match; then `at` is
 * the position of the error. */
struct json_scan {
    const char *text, *at, *end;
    int depth, depth_max;
    char problem[400];

    /* Used by json_parse only. */
    bool has_tree;
    size_t value_count, values_max;
    struct json_item **members; /* stb_ds array, scratch */
};

/* Skips white space. Returns the next byte, or 0 at the end. */
char json_scan_peek(struct json_scan *scan);

/* Scans a string, with `string` between its quotes; a key and its colon; or any value. */
bool json_scan_string(struct json_scan *scan, struct json_span *string);
bool json_scan_key(struct json_scan *scan, struct json_span *key);
bool json_scan_value(struct json_scan *scan);

/* Fails because `expected`, such as "a comma", is not at the next byte; or for the given reason. */
bool json_scan_expected(struct json_scan *scan, const char *expected);
bool json_scan_refuse(struct json_scan *scan, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns the column of the scan's position in its line, in characters from 1. */
size_t json_scan_column(const struct json_scan *scan);
