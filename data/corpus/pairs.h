/* The pairs of documents in token shards, for preference tuning.
 *
 * A pair is two documents that follow one another: the chosen and the rejected answer to a prompt,
 * or, for KTO, the labelled answer of a row and the prompt with another row's answer
 * (data/corpus/token_mask.h). An answer begins with the first token of its document that counts in
 * the loss. A document of L tokens takes L - 1 rows of a sequence: its last token is only a target.
 *
 * A document with more rows than a model has positions is cut. So are those of a pair with more
 * rows than a sequence: each may have half of them, and what the other one leaves of its half. The
 * end of the answer is left out first. If the prompt takes more than half of what is allowed, its
 * beginning is left out as well, so that the answer's beginning is trained on. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/corpus/loader.h"
#include "data/corpus/tokens.h"

/* True if the set has pairs, and if its first one is a labelled row. */
bool pairs_exist(const struct tokens *tokens);
bool pairs_labelled(const struct tokens *tokens);

/* Returns "pair", "pairs", "labelled answer" or "labelled answers", as fits the number. */
const char *pairs_noun(const struct packing *packing);

/* Sequences of pairs, of shards in which every document belongs to one; pairs are counted. Batches
 * need first keys. loader_open fails if a shard holds none, if the set mixes kinds, or if a pair is
 * damaged. */
extern const struct loader_kind pairs_loader;
