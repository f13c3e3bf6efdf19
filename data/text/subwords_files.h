/* The files of a folder from which data/text/subwords.h are read: tokenizer.json, or tiktoken.json
 * and ranks.tiktoken. */
#pragma once

#include "data/base/error.h"
#include "data/text/subwords.h"

#define SUBWORDS_JSON     "tokenizer.json"
#define SUBWORDS_TIKTOKEN "tiktoken.json"
#define SUBWORDS_RANKS    "ranks.tiktoken"

enum { SUBWORDS_FILES_MAX = 2, SUBWORDS_FILE_MAX_BYTES = 64 << 20 };

struct subwords_file {
    const char *name;
    char *bytes; /* [size], by malloc; a NUL follows */
    size_t size;
};

/* Reads tokenizer.json where there is one, else the other two. What was read, [*count], is the
 * caller's, on success. */
int subwords_read_folder(struct subwords *subwords, struct subwords_file files[SUBWORDS_FILES_MAX],
                         int *count, const char *folder, struct error *error);
