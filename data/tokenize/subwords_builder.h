/* The tokens and merges of data/tokenize/subwords.h, as files name them one by one. What these
 * functions refuse is what a file says: they fail with its path. */
#pragma once

#include "data/util/error.h"
#include "data/tokenize/byte_alphabet.h"
#include "data/tokenize/json_reader.h"
#include "data/tokenize/subwords.h"

struct cJSON;

struct subwords_builder {
    struct subwords *subwords; /* what is built; byte_level is set before */
    const struct json_reader *reader;
    struct byte_alphabet alphabet;
    struct subwords_entry *entries; /* stb_ds: by token */
    uint8_t *pool;                  /* stb_ds: their names */
    uint8_t *scratch;               /* stb_ds */
    uint8_t *forms[2];              /* stb_ds */
};

/* Begins with empty subwords. Takes no memory. */
void subwords_builder_open(struct subwords_builder *builder, struct subwords *subwords,
                           const struct json_reader *reader);

/* Releases the builder and the root that was read, and where status is not 0 what was built.
 * Returns status. */
int subwords_builder_close(struct subwords_builder *builder, struct cJSON *root, int status);

/* A token that pieces may become, by its bytes, or as byte-level files write it in the alphabet of
 * data/tokenize/byte_alphabet.h; what is not written so has to be added, too. */
int subwords_builder_put(struct subwords_builder *builder, const uint8_t *name, size_t size,
                         int32_t token);
int subwords_builder_put_letters(struct subwords_builder *builder, const char *name, int32_t token);

/* An added token, after all of those; its text is copied. */
int subwords_builder_add(struct subwords_builder *builder, struct added_token added,
                         const char *text);

/* Once after the last token. byte_fallback: each byte must have a token <0xXX>. */
int subwords_builder_finish(struct subwords_builder *builder, bool byte_fallback);

/* Then merges, by rank, and the trees of the added tokens, for which the normal form is known. */
int subwords_builder_merge(struct subwords_builder *builder, const char *left, const char *right,
                           uint32_t rank);
int subwords_builder_grow_trees(struct subwords_builder *builder);
