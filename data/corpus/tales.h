/* The embedded corpus: small stories drawn from a probabilistic grammar written for this project.
 *
 * Because the grammar is known and decodable in one way only, so is the information in the text: a
 * model that had learned the grammar perfectly and reads every story from its first letter would
 * reach a mean loss of tales_nats_per_byte() and nothing could reach less. A training window that
 * starts in the middle of a story lacks the names said before it, so the loss of even a perfect
 * model lies above that floor, the more so the shorter the window. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/corpus/tokens.h"

/* Stories until there are at least at_least_bytes, ending with a whole one; each ends with an empty
 * line ("\n\n"), which belongs to it. A function of seed alone: a larger size only adds stories.
 * *text (plain ASCII, no terminating zero) is the caller's to free(). */
int tales_generate(uint8_t **text, size_t *bytes, uint64_t seed, size_t at_least_bytes,
                   struct error *error);

/* The entropy rate, computed from the grammar and not from a sample: expected nats per story over
 * expected bytes per story. */
double tales_nats_per_byte(void);

/* The corpus that the config calls "tales": about 2 MB for training, or about 200 KB of other
 * stories for validation, as one shard in memory, whose tokens are the bytes of the text. Released
 * with tokens_close. */
int tales_tokens(struct tokens *tokens, int is_validation, struct error *error);
