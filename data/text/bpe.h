/* A byte-pair encoding of GPT-2's kind: byte-level, with merges by rank (data/text/byte_tokens.h,
 * data/text/merges.h). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/base/error.h"
#include "data/text/byte_tokens.h"
#include "data/text/merges.h"
#include "data/text/vocabulary.h"

/* Read-only once made, by data/text/bpe_files.h. */
struct bpe {
    int vocab_size;   /* tokens are 0 .. vocab_size - 1, at most VOCABULARY_MAX */
    int end_of_text;  /* the token <|endoftext|>, or -1 */
    bool whole_text;  /* the text is one piece, no pattern cuts it */
    uint8_t *bytes;   /* stb_ds: the bytes of all tokens, one after the other */
    uint32_t *starts; /* stb_ds [vocab_size + 1]: where a token's bytes begin */
    struct byte_tokens byte_tokens;
    struct merges merges; /* a rank of its own each */
};

/* Releases everything; harmless on a struct of zeros. */
void bpe_free(struct bpe *bpe);

/* Whether two encodings are the same; else fails with the first difference, naming them as a and
 * b. */
int bpe_compare(const struct bpe *a, const char *a_name, const struct bpe *b, const char *b_name,
                struct error *error);
