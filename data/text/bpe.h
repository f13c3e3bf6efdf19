/* Byte-pair encoding of one piece of text (Sennrich et al. 2016): its bytes are the first tokens;
 * of all neighbouring pairs that a merge is known for, the one of the lowest rank (the leftmost of
 * several) becomes one token, until there is none. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/text/vocabulary.h"

struct bpe_merge {
    int32_t left, right, token;
};

/* Read-only once made, by data/text/bpe_files.h. */
struct bpe {
    int vocab_size;           /* tokens are 0 .. vocab_size - 1, at most VOCABULARY_MAX */
    int end_of_text;          /* the token <|endoftext|>, or -1 */
    bool whole_text;          /* the text is one piece, no pattern cuts it */
    uint8_t *bytes;           /* stb_ds: the bytes of all tokens, one after the other */
    uint32_t *starts;         /* stb_ds [vocab_size + 1]: where a token's bytes begin */
    int32_t byte_tokens[256]; /* the token of a single byte */
    struct bpe_merge *merges; /* stb_ds: by rank, the lowest first */
    uint64_t *pairs;          /* stb_ds: hash table of merges, see bpe_index */
    int pair_shift;
};

/* Releases everything; harmless on a struct of zeros. */
void bpe_free(struct bpe *bpe);

/* Fills pairs from merges, whose pairs all differ. */
void bpe_index(struct bpe *bpe);

/* Room for merging, kept between pieces. Zeros to begin with. */
struct bpe_scratch {
    struct bpe_node *nodes; /* stb_ds */
    uint64_t *heap;         /* stb_ds */
};

void bpe_scratch_free(struct bpe_scratch *scratch);

/* Appends the tokens of one piece to *tokens, an stb_ds array. Takes O(size log size) time, and
 * while it runs about 40 bytes of memory for each byte of a long piece. */
void bpe_merge(const struct bpe *bpe, struct bpe_scratch *scratch, int32_t **tokens,
               const uint8_t *piece, size_t size);
