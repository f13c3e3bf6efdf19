/* The built-in corpus of sums, "sums": 9,000 of two numbers below 100 to train on, and the other
 * 1,000 for validation, in tokens of bytes. */
#pragma once

#include <stdbool.h>

#include "data/corpus/tokens.h"
#include "data/util/error.h"

/* Makes documents "37 plus 45 is 82" with a line feed, of which the answer counts in the loss. Two
 * of three answers are wrong, by 1 or by 10, so that rewards have something to teach. */
int sums_texts(struct tokens *tokens, bool is_validation, struct error *error);

/* Makes rows {"prompt": "37 plus 45 is", "answer": "82"} for data/corpus/prompts.h. */
int sums_prompts(struct tokens *tokens, bool is_validation, struct error *error);
