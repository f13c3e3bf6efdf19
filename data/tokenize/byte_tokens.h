/* Byte-level pieces: each byte starts as one token, and neighbours are merged
 * (data/tokenize/merges.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/tokenize/merges.h"

struct byte_tokens {
    int32_t tokens[256];   /* token of each byte, or -1 */
    bool joined[256][256]; /* true if a token contains these two bytes in a row */
};

/* Records the byte pairs of a token that merges may produce. Call it once for each of them. */
void byte_tokens_join(struct byte_tokens *bytes, const uint8_t *name, size_t size);

/* Appends the tokens of one piece to *tokens, an stb_ds array. Time is that of merges_apply for the
 * longest run whose neighbouring bytes are all joined. */
void byte_tokens_merge(const struct byte_tokens *bytes, const struct merges *merges,
                       struct merges_scratch *scratch, int32_t **tokens, const uint8_t *piece,
                       size_t size);
