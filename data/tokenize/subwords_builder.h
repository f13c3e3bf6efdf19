/* Builds data/tokenize/subwords.h from the tokens and merges of a file, one by one. Functions fail,
 * with the file's path, if the file is at fault. */
#pragma once

#include "data/util/error.h"
#include "data/tokenize/byte_alphabet.h"
#include "data/tokenize/json_reader.h"
#include "data/tokenize/subwords.h"

struct cJSON;

struct subwords_builder {
    struct subwords *subwords; /* output; set its byte_level before adding tokens */
    struct cJSON *root;        /* the parsed JSON file */
    const struct json_reader *reader;
    const struct json_reader *merges; /* the file that merges are from, or NULL: the same */
    struct byte_alphabet alphabet;
    struct subwords_entry *entries;  /* stb_ds: by token */
    uint8_t *pool;                   /* stb_ds: names of the entries */
    uint8_t *scratch;                /* stb_ds */
    uint8_t *forms[2];               /* stb_ds */
    struct subwords_number *numbers; /* stb_ds: tokens by their names in the file */
    int32_t vocabulary_count;        /* tokens that subwords_builder_number was called for */
    int32_t added_max;               /* highest number of an added token; -1: none */
};

/* Parses the JSON file and starts with subwords that are empty except for their atoms. On failure
 * nothing is left to close, and the subwords are empty. */
int subwords_builder_open(struct subwords_builder *builder, struct subwords *subwords,
                          const struct json_reader *json);

/* Releases the builder, and the subwords if status is not 0. Returns status. */
int subwords_builder_close(struct subwords_builder *builder, int status);

/* Adds a token that a piece may become, by its bytes or as byte-level files write it, in the
 * alphabet of data/tokenize/byte_alphabet.h. A name outside of that alphabet must also be an added
 * token. */
int subwords_builder_add_token(struct subwords_builder *builder, const uint8_t *name, size_t size,
                               int32_t token);
int subwords_builder_add_letters(struct subwords_builder *builder, const char *name, int32_t token);

/* Adds an added token. Call it after all tokens of the vocabulary; the text is copied. A text that
 * is already added only changes its flags. */
int subwords_builder_add_added(struct subwords_builder *builder, struct added_token added,
                               const char *text);

/* Remembers the number of a name of the vocabulary, as the file writes it. The name must live as
 * long as the builder. */
void subwords_builder_number(struct subwords_builder *builder, const char *name, int32_t token);

/* Returns the number of a name of the vocabulary or of an added token so far, or -1. */
int32_t subwords_builder_find_number(struct subwords_builder *builder, const char *name);

/* Returns the number that Hugging Face's tokenizers give an added token: that of the same name in
 * the vocabulary or added before, or else the next one. They ignore the number in the file. */
int32_t subwords_builder_added_number(struct subwords_builder *builder, const char *text);

/* Call it once after the last token. byte_fallback: the tokens <0xXX> spell characters without a
 * token. */
int subwords_builder_finish(struct subwords_builder *builder, bool byte_fallback);

/* Next come the merges, by rank, and the tries of the added tokens. The normalizer must be set by
 * then. */
int subwords_builder_add_merge(struct subwords_builder *builder, const char *left,
                               const char *right, uint32_t rank);
int subwords_builder_build_tries(struct subwords_builder *builder);

/* ---- the parts of tokenizer.json around the model (subwords_pipeline.c) */

/* Reads normalizer, pre-tokenizer, decoder and post-processor, and decides whether the tokenizer is
 * byte-level. Fails with what is wrong or unsupported. */
int subwords_read_pipeline(struct subwords *subwords, const struct cJSON *root,
                           const struct json_reader *reader);

/* Appends a pattern that cuts text. */
int subwords_add_rule(struct subwords *subwords, const char *regex, enum split_dialect dialect,
                      bool drops_gaps, const struct json_reader *reader);

/* Fails with: its WHAT "NAME" is not supported. */
int subwords_refuse(const char *what, const char *name, const struct json_reader *reader);
