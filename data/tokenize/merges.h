/* Byte-pair merging (Sennrich et al. 2016): of all neighbouring pairs that have a merge, the one of
 * the lowest rank, and the leftmost of several, becomes one token. This repeats until no pair has a
 * merge. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/tokenize/vocabulary.h"

/* Ranks are 0 .. MERGES_RANK_MAX - 1, tokens 0 .. VOCABULARY_MAX - 1. */
enum { MERGES_RANK_MAX = (1 << 24) - 1 };

struct merge {
    int32_t left, right, token;
    uint32_t rank;
};

/* A hash table of merges, by left and right token. Zero-initialized when empty; read-only once
 * filled. */
struct merges {
    uint64_t *slots;  /* stb_ds: left, right and rank packed into 64 bits */
    uint64_t *filter; /* stb_ds: a bit filter, indexed by more bits of the hash than the slots */
    uint32_t *low;    /* stb_ds: ranks of pairs of low tokens, usually bytes */
    int32_t *results; /* stb_ds: resulting token, by rank */
    size_t count;
    int shift;
};

/* Adds a merge; returns false if the pair already has one. Merges of the same rank must give the
 * same token. */
bool merges_add(struct merges *merges, struct merge merge);
void merges_free(struct merges *merges);

/* Returns the merges in order of rank, as an stb_ds array. Requires ranks 0 .. count - 1, each used
 * once. */
struct merge *merges_list(const struct merges *merges);

/* Scratch memory for merging, reused between pieces. Zero-initialized when empty. */
struct merges_scratch {
    uint64_t *tree;  /* stb_ds */
    uint32_t *sizes; /* stb_ds */
};

void merges_scratch_free(struct merges_scratch *scratch);

/* Merges tokens [count] in place and returns how many are left. Takes O(count log count) time and
 * 20 to 36 bytes of scratch memory for each token. count < 2^40. */
size_t merges_apply(const struct merges *merges, struct merges_scratch *scratch, int32_t *tokens,
                    size_t count);

/* Byte-level pieces: each byte starts as one token, and neighbours are merged. */
struct byte_tokens {
    int32_t tokens[256];   /* token of each byte, or -1 */
    bool joined[256][256]; /* true if a token contains these two bytes in a row */
};

/* Records the byte pairs of a token that merges may produce. Call it once for each of them. */
void byte_tokens_join(struct byte_tokens *bytes, const uint8_t *name, size_t size);

/* Appends the tokens of one piece to *tokens, an stb_ds array. Time is that of merges_apply for the
 * longest run whose neighbouring bytes are all joined. */
void byte_tokens_merge(const struct byte_tokens *bytes, const struct merges *merges,
                       struct merges_scratch *scratch, int32_t **tokens, const uint8_t *piece,
                       size_t size);
