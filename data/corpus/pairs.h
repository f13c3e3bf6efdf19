/* The pairs of documents in token shards, for preference tuning, and their sequences.
 *
 * A pair is two documents that follow one another: the chosen and the rejected answer to a prompt,
 * or, for KTO, the labelled answer of a row and the prompt with another row's answer
 * (data/corpus/token_mask.h). An answer begins with the first token of its document that counts in
 * the loss. A document of L tokens takes L - 1 rows of a sequence: its last token is only a target.
 *
 * Sequences are filled with whole pairs, in order. A document with more rows than a model has
 * positions is cut. So are those of a pair with more rows than a sequence: each may have half of
 * them, and what the other one leaves of its half. The end of the answer is left out first. If the
 * prompt takes more than half of what is allowed, its beginning is left out as well, so that the
 * answer's beginning is trained on. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/corpus/tokens.h"
#include "data/util/error.h"

enum { PAIR_SIDES = 2 }; /* chosen, rejected */

struct pair {
    uint32_t shard;              /* index of the shard */
    bool undesirable;            /* of a labelled row: its label is false */
    uint64_t begin[PAIR_SIDES];  /* first token that is used */
    uint32_t rows[PAIR_SIDES];   /* at least 1; tokens begin .. begin + rows are used */
    uint32_t answer[PAIR_SIDES]; /* rows before the first one whose target is the answer's */
};

struct pairs {
    struct pair *list; /* stb_ds array, in the order of the shards */
    uint64_t *first;   /* stb_ds array: index of each sequence's first pair, and their number */
    bool labelled;     /* all are labelled rows, else none is */
    uint64_t cut;      /* pairs of which a document was cut */
    float *reference;  /* [pairs, 2] log-probabilities of the answers under a reference model, from
                        * malloc; NULL until they are known */
};

/* True if the set has pairs, and if its first one is a labelled row. */
bool pairs_exist(const struct tokens *tokens);
bool pairs_labelled(const struct tokens *tokens);

/* Returns "pair", "pairs", "labelled answer" or "labelled answers", as fits the number. */
const char *pairs_noun(const struct pairs *pairs);

struct pairs_options {
    uint32_t seq_len; /* rows of a sequence */
    uint32_t longest; /* rows of a document at most, >= 1 */
};

/* Finds all pairs of a set in which every document belongs to one, and fills sequences with them.
 * Fails if there is none, if shards with and without pairs are mixed, or if a pair is damaged. On
 * failure nothing is left to close. */
int pairs_open(struct pairs *pairs, const struct tokens *tokens,
               const struct pairs_options *options, struct error *error);
void pairs_close(struct pairs *pairs);
