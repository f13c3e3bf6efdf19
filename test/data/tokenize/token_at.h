/* One token of a shard, whatever its width. */
#pragma once

#include "data/corpus/tokens.h"

static inline int32_t token_at(const struct token_shard *shard, uint64_t position) {
    int32_t token;
    struct error error;
    cr_assert_eq(token_shard_read(shard, &token, position, 1, &error), 0, "%s", error.text);
    return token;
}
