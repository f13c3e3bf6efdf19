/* JSON (RFC 8259) of configs, checkpoints, safetensors headers, tokenizers and rows of training
 * text.
 *
 * cJSON makes the tree. The text is checked before, since cJSON accepts more than JSON (control
 * characters and invalid UTF-8 in strings, duplicate keys, 01), and does not say what is wrong.
 * valueint of an item is the byte offset of its key, or of its value if it has no key, never a
 * number. */
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
    JSON_ROW_DEPTH_MAX = 256,
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

/* Like json_parse, for rows of training text. Accepts depth 256, duplicate keys, unpaired
 * surrogates (read as U+FFFD) and \u0000 (read as JSON_ROW_NUL). No NUL need follow the row. On
 * failure *column is the position of the error, in characters from 1, and the message does not name
 * it. valueint of an item is always the offset of its value. */
#define JSON_ROW_NUL "\xff\xff\xff\xff\xff\xff" /* never in UTF-8; as long as the escape */
int json_parse_row(struct cJSON **root, const char *row, size_t size, size_t *column,
                   struct error *error);

/* Returns the line of an item of json_parse's tree, from 1: of its key if it has one. */
size_t json_line(const struct cJSON *item, const char *text);

/* Returns the source text of the item's value, and its length. The item must be of json_parse's
 * tree of this text, not of json_parse_row's. */
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
int json_file_open_in(struct json_file *file, const char *directory, const char *name,
                      struct error *error);
/* Leaves root NULL if the directory has no such file. */
int json_file_open_optional(struct json_file *file, const char *directory, const char *name,
                            struct error *error);
void json_file_close(struct json_file *file);

/* Returns the member of that name; NULL if there is none, or if object is NULL or not an object. */
const struct cJSON *json_member(const struct cJSON *object, const char *key);

/* Returns the text of a member that is a string, or NULL. */
const char *json_text(const struct cJSON *object, const char *key);

/* Reads a member that is an integer from minimum to maximum (at most 2^53). Returns false
 * otherwise. */
bool json_whole(int64_t *value, const struct cJSON *object, const char *key, int64_t minimum,
                int64_t maximum);
