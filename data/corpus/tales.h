/* The built-in corpus: small synthetic stories drawn from a probabilistic grammar of this project.
 *
 * The grammar is known and can be decoded in only one way, so the information in the text is known,
 * too. A model that has learned the grammar perfectly and reads every story from its first letter
 * reaches a mean loss of tales_nats_per_byte(), and no model can reach less. A training window that
 * starts in the middle of a story lacks the names mentioned before it. So the loss of even a
 * perfect model is above that floor, and the shorter the window, the more. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/corpus/tokens.h"

/* Generates whole stories until there are at least at_least_bytes. Each story ends with an empty
 * line ("\n\n"). The text is a function of seed alone: a larger size only adds stories. The caller
 * frees *text, which is plain ASCII without a terminating NUL. */
int tales_generate(uint8_t **text, size_t *bytes, uint64_t seed, size_t at_least_bytes,
                   struct error *error);

/* Returns the entropy rate, computed from the grammar and not from a sample: expected nats per
 * story divided by expected bytes per story. */
double tales_nats_per_byte(void);

/* Creates the corpus that the config calls "tales", as one shard in memory whose tokens are the
 * bytes of the text: about 2 MB for training, or about 200 KB of other stories for validation.
 * Release it with tokens_close. */
int tales_tokens(struct tokens *tokens, int is_validation, struct error *error);
