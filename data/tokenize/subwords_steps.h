/* What tokenizer.json says beside the model: how a text is brought into its normal form and cut,
 * and what stands around it. For data/tokenize/subwords_json.h. */
#pragma once

#include "data/tokenize/json_reader.h"
#include "data/tokenize/subwords.h"

/* Each fails with what is wrong or not known. subwords->atoms is set; the normalizer is read before
 * the pre-tokenizer, which says whether the tokenizer is byte-level, and that before the
 * decoder. */
int subwords_read_normalizer(struct subwords *subwords, const struct cJSON *root,
                             const struct json_reader *reader);
int subwords_read_pre_tokenizer(struct subwords *subwords, const struct cJSON *root,
                                const struct json_reader *reader);
int subwords_read_decoder(struct subwords *subwords, const struct cJSON *root,
                          const struct json_reader *reader);
int subwords_read_post_processor(struct subwords *subwords, const struct cJSON *root,
                                 const struct json_reader *reader);

/* Appends a pattern that cuts text. */
int subwords_add_rule(struct subwords *subwords, const char *regex, enum split_edition edition,
                      bool drops_gaps, const struct json_reader *reader);

/* "its WHAT "NAME" is not known here" */
int subwords_refuse(const char *what, const char *name, const struct json_reader *reader);
