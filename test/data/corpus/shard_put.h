/* Puts tokens without marks into a set of shards. */
#pragma once

#include <stdlib.h>

#include "data/corpus/tokens.h"

static inline int shard_writer_put(struct shard_writer *writer, const int32_t *tokens,
                                   uint64_t count, struct error *reason) {
    void *packed = malloc(count * shard_writer_token_bytes(writer) + 1);
    shard_writer_pack(writer, packed, tokens, count);
    int status = shard_writer_put_packed(writer, packed, NULL, count, reason);
    free(packed);
    return status;
}
