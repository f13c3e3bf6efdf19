/* Byte-level pieces: each byte has a token, and those of a piece are merged (data/tokenize/merges.h).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/tokenize/merges.h"

struct byte_tokens {
    int32_t tokens[256];   /* by byte; -1: none */
    bool joined[256][256]; /* whether some token has the second byte behind the first one */
};

/* Once for the bytes of each token that merges may give. */
void byte_tokens_join(struct byte_tokens *bytes, const uint8_t *name, size_t size);

/* Appends the tokens of one piece to *tokens, an stb_ds array. Takes the time of merges_apply for
 * the longest part in which all neighbours are joined. */
void byte_tokens_merge(const struct byte_tokens *bytes, const struct merges *merges,
                       struct merges_scratch *scratch, int32_t **tokens, const uint8_t *piece,
                       size_t size);
