/* One token of a shard, whatever its width. */
#pragma once

#include "data/text/tokens.h"

static inline int32_t token_at(const struct token_shard *shard, uint64_t position) {
    int32_t token;
    token_shard_read(shard, &token, position, 1);
    return token;
}
