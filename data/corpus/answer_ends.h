/* The special tokens that end the answers of a training text, found in its masks: a model that was
 * trained on them ends its answers with them. */
#pragma once

#include <stdint.h>

#include "data/corpus/tokens.h"
#include "data/tokenize/tokenizer.h"
#include "data/util/error.h"

enum { ANSWER_ENDS_MAX = 8 };

/* An answer is a run of tokens that count in the loss, after one that does not. Stores the special
 * tokens that end at least a tenth of the first answers of each shard, and returns their number; 0
 * for a text without masks. Returns -1 if a shard cannot be read. */
int answer_ends(int32_t ends[ANSWER_ENDS_MAX], const struct tokens *text,
                const struct tokenizer *tokenizer, struct error *error);
