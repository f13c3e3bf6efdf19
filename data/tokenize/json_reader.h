/* Strict reading of a tokenizer's JSON files, for data/tokenize/subwords_json.c and
 * data/tokenize/tiktoken_vocab.c. Every function fails with the file's path and the reason. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"

struct cJSON;

/* Messages show at most this many bytes of a path. */
enum { JSON_READER_PATH_SHOWN = 400 };

struct json_reader {
    const char *path; /* path for messages */
    const char *text; /* [size]; a NUL follows */
    size_t size;
    struct error *error;
};

/* Writes the path followed by the formatted text into the error and returns -1. */
int json_reader_fail(const struct json_reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Parses the text. The caller deletes *root, which is NULL on failure. */
int json_reader_parse(struct cJSON **root, const struct json_reader *reader);

/* Returns the member of that name, or NULL if it is missing or null. */
const struct cJSON *json_reader_member(const struct cJSON *object, const char *name);

/* Reads the string value of a member, "" if it is missing. */
int json_reader_text(const char **text, const struct cJSON *object, const char *name,
                     const struct json_reader *reader);

/* Returns the token that a number stands for, or -1 if it is none. */
int32_t json_reader_token(const struct cJSON *number);

/* Reads a boolean member, `otherwise` if it is missing. */
int json_reader_flag(bool *flag, const struct cJSON *object, const char *name, bool otherwise,
                     const struct json_reader *reader);

/* Fails unless `object` is an object whose members all have one of these space-separated names.
 * `what` names the object in the message. */
int json_reader_expect(const struct cJSON *object, const char *names, const char *what,
                       const struct json_reader *reader);
