/* Merging of neighbouring tokens (Sennrich et al. 2016): of all neighbouring pairs that a merge is
 * known for, the one of the lowest rank (the leftmost of several) becomes one token, until there is
 * none. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MERGES_NO_RANK UINT32_MAX

struct merge {
    int32_t left, right, token;
    uint32_t rank; /* MERGES_NO_RANK: an empty slot of the table */
};

/* A hash table by left and right. Read-only once filled; zeros to begin with. */
struct merges {
    struct merge *slots; /* stb_ds */
    uint64_t *filter;    /* stb_ds: bits by a longer part of the hash */
    size_t count;
    int shift;
};

/* Adds a merge; returns false where the pair is known already. Merges of the same rank give the
 * same token. */
bool merges_add(struct merges *merges, struct merge merge);
void merges_free(struct merges *merges);

/* Room for merging, kept between pieces. Zeros to begin with. */
struct merges_scratch {
    struct merges_node *nodes; /* stb_ds */
    uint64_t *heap;            /* stb_ds */
};

void merges_scratch_free(struct merges_scratch *scratch);

/* Merges tokens [count] in place and returns how many are left. Takes O(count log count) time, and
 * while it runs about 32 bytes of memory for each of many tokens. count < 2^32 - 1. */
size_t merges_apply(const struct merges *merges, struct merges_scratch *scratch, int32_t *tokens,
                    size_t count);
