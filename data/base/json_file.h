/* Small JSON files, read strictly, and pieces of JSON: what configs, checkpoints, safetensors
 * headers and Hugging Face configs share. */
#ifndef DATA_BASE_JSON_FILE_H
#define DATA_BASE_JSON_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/base/error.h"

struct cJSON;

enum { JSON_FILE_MAX_BYTES = 4 << 20 };

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

#endif
