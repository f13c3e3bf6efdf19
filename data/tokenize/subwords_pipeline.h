/* Readers of the parts of tokenizer.json around the model: normalizer, pre-tokenizer, decoder and
 * post-processor. For data/tokenize/subwords_json.h. */
#pragma once

#include "data/tokenize/json_reader.h"
#include "data/tokenize/subwords.h"

/* Reads all of them, and decides whether the tokenizer is byte-level. Fails with what is wrong or
 * unsupported. */
int subwords_read_pipeline(struct subwords *subwords, const struct cJSON *root,
                           const struct json_reader *reader);

/* Appends a pattern that cuts text. */
int subwords_add_rule(struct subwords *subwords, const char *regex, enum split_dialect dialect,
                      bool drops_gaps, const struct json_reader *reader);

/* Fails with: its WHAT "NAME" is not supported. */
int subwords_refuse(const char *what, const char *name, const struct json_reader *reader);
