/* Sequences of whole documents: rows, or pairs of answers for preference tuning.
 *
 * A document of L tokens takes at most L - 1 rows of a sequence, for its last token is only a
 * target; so is the first one of the next document if it counts and ends this one. Rows behind the
 * last target that counts have no effect and are left out. A document with more rows than a
 * sequence is cut into parts of seq_len rows, of which those without a target that counts are left
 * out. A unit is what stays together in a sequence: a document, a part of one, or a pair.
 *
 * The units of each shard are packed by themselves, best fit decreasing: the longest first, each
 * into the sequence that has the fewest free rows of those with enough. What a sequence holds is a
 * function of the shard and seq_len alone. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/corpus/preference_pair.h"
#include "data/corpus/tokens.h"

enum { PIECE_NONE = UINT32_MAX };

/* Tokens of a document that follow one another in a sequence. */
struct packed_piece {
    uint64_t begin : 40; /* index of the first token in its shard */
    uint64_t shard : 24;
    uint32_t rows; /* 1 .. seq_len */
    uint32_t next; /* of a unit's first piece: that of the sequence's next unit, or PIECE_NONE */
};

/* Zero-initialized but for the first two fields, it has no sequence. */
struct packing {
    uint32_t seq_len;
    uint32_t sides;              /* pieces of a unit: 1, or 2 of a pair */
    struct packed_piece *pieces; /* stb_ds array, in the order of the shards */
    uint32_t *first;             /* stb_ds array: the first piece of each sequence */
    uint64_t documents;          /* with rows; pairs count as one */
    uint64_t cut;                /* those of which a part is missing or in another sequence */
    uint64_t rows;               /* of all pieces */
    bool labelled;               /* the pairs are labelled rows */
    float *reference; /* [pairs, 2] log-probabilities of the answers under a reference model,
                       * from malloc; NULL until they are known */
};

/* Adds the documents of a shard. Tokens before the first mark are one as well. */
void packing_add_documents(struct packing *packing, const struct token_shard *shard,
                           uint32_t index);

/* Fills sequences with the units that begin with piece number `begun`, all of one shard. */
void packing_fill(struct packing *packing, size_t begun);

/* True if units are pairs. */
static inline bool packing_has_pairs(const struct packing *packing) {
    return packing->sides == PREFERENCE_SIDES;
}

/* Returns the number of units. */
uint32_t packing_units(const struct packing *packing);

void packing_close(struct packing *packing);
