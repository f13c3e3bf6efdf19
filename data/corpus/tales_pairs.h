/* The built-in pairs for preference tuning: how does this sentence of a story end?
 *
 * Each pair has a piece of a story (data/corpus/tales.h) as its prompt. The chosen answer is the
 * rest of the sentence. The rejected one is wrong and about as long: the same words in another
 * order, or in every second pair the end of a sentence elsewhere. Tokens are bytes, and nothing
 * marks the end of an answer, because the story goes on there. The stories are in neither the
 * training data nor the validation data of the corpus. */
#pragma once

#include "data/util/error.h"
#include "data/corpus/tokens.h"

enum {
    TALES_PAIRS = 2000,
    TALES_PAIRS_VALIDATION = 200,
    TALES_PAIRS_SEED = 0x7a1e9a, /* of the stories for training; plus 1 for validation */
    TALES_PAIRS_TEXT_BYTES = 400000,
    TALES_PAIRS_DOCUMENT_BYTES = 140, /* largest size of prompt and answer */
    TALES_PAIRS_LENGTHS = 5           /* largest difference between the sizes of two answers */
};

/* Creates the pairs that the config calls "tales", as one shard in memory with a mask of pairs
 * (data/corpus/token_mask.h). They are always the same. Release it with tokens_close. */
int tales_pairs(struct tokens *tokens, int is_validation, struct error *error);
