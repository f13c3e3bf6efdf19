/* Merging of neighbouring tokens (Sennrich et al. 2016): of all neighbouring pairs that a merge is
 * known for, the one of the lowest rank (the leftmost of several) becomes one token, until there is
 * none. */
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

/* A hash table by left and right. Read-only once filled; zeros to begin with. */
struct merges {
    uint64_t *slots;  /* stb_ds: left, right and rank */
    uint64_t *filter; /* stb_ds: bits by a longer part of the hash */
    uint32_t *low;    /* stb_ds: ranks of the pairs of low tokens, most often bytes */
    int32_t *results; /* stb_ds: the token that a merge gives, by rank */
    size_t count;
    int shift;
};

/* Adds a merge; returns false where the pair is known already. Merges of the same rank give the
 * same token. */
bool merges_add(struct merges *merges, struct merge merge);
void merges_free(struct merges *merges);

/* The merges by rank, an stb_ds array. Ranks are 0 .. count - 1, each of one merge. */
struct merge *merges_list(const struct merges *merges);

/* Room for merging, kept between pieces. Zeros to begin with. */
struct merges_scratch {
    uint64_t *tree;  /* stb_ds */
    uint32_t *sizes; /* stb_ds */
};

void merges_scratch_free(struct merges_scratch *scratch);

/* Merges tokens [count] in place and returns how many are left. Takes O(count log count) time, and
 * while it runs 20 to 36 bytes of memory for each token. count < 2^40. */
size_t merges_apply(const struct merges *merges, struct merges_scratch *scratch, int32_t *tokens,
                    size_t count);
