/* JSON files of tokenizers: strictly read members, for data/tokenize/subwords_json.c and
 * data/tokenize/tiktoken_vocab.c. All fail with the file's path and what is wrong. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "data/util/error.h"

struct cJSON;

/* Paths longer than this are cut in messages. */
enum { JSON_READER_PATH_SHOWN = 400 };

struct json_reader {
    const char *path; /* for messages */
    const char *text; /* [size]; a NUL follows */
    size_t size;
    struct error *error;
};

/* Writes the path and what follows it into the error and returns -1. */
int json_reader_fail(const struct json_reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Parses the text. *root is to be deleted; NULL on failure. */
int json_reader_parse(struct cJSON **root, const struct json_reader *reader);

/* The member of that name, or NULL where there is none or it is null. */
const struct cJSON *json_reader_member(const struct cJSON *object, const char *name);

/* The text of a member, "" if there is none. */
int json_reader_text(const char **text, const struct cJSON *object, const char *name,
                     const struct json_reader *reader);

/* Whether the member is true; `otherwise` if there is none. */
int json_reader_flag(bool *flag, const struct cJSON *object, const char *name, bool otherwise,
                     const struct json_reader *reader);

/* Fails unless it is an object all of whose members have one of these names, which have spaces
 * between. `what` it is, for the message. */
int json_reader_expect(const struct cJSON *object, const char *names, const char *what,
                       const struct json_reader *reader);
