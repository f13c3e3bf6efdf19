/* A cache of encoded pieces and their tokens, since text repeats its words. The table has a fixed
 * size of 4 MiB; a new piece replaces an older one in its slot. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Longer pieces are rare and are not cached. An entry fills two cache lines of the CPU, and most
 * pieces have no more tokens than fit into the first. */
enum {
    PIECE_CACHE_ENTRIES = 1 << 15,
    PIECE_CACHE_BYTES_MAX = 30,
    PIECE_CACHE_TOKENS_FIRST = 8, /* tokens in the first cache line */
    PIECE_CACHE_TOKENS_MAX = 24
};

struct piece_cache_entry {
    uint8_t size; /* size of the piece; 0: the slot is empty */
    uint8_t count;
    uint8_t bytes[PIECE_CACHE_BYTES_MAX];
    int32_t tokens[PIECE_CACHE_TOKENS_MAX];
};

/* All zeros if not allocated. Running out of memory is not an error: nothing is cached then. */
struct piece_cache {
    struct piece_cache_entry *entries; /* [PIECE_CACHE_ENTRIES] */
};

void piece_cache_open(struct piece_cache *cache);
void piece_cache_close(struct piece_cache *cache);

/* A piece that is to be encoded, and its slot in the cache. */
struct piece {
    const uint8_t *bytes;
    size_t size; /* 0: no piece */
    uint64_t hash;
    struct piece_cache_entry *entry; /* its slot; NULL: the piece is not cached */
};

/* Returns a hash of all bytes; 0 for an empty piece. */
uint64_t piece_hash(const uint8_t *bytes, size_t size);

/* Finds the slot of a piece and prefetches it. Memory latency is long, so it is best to look up the
 * next piece before encoding the current one. */
struct piece piece_cache_lookup(const struct piece_cache *cache, const uint8_t *bytes, size_t size);

/* Appends the cached tokens to *tokens, an stb_ds array. Returns false if the piece is not in its
 * slot. */
bool piece_cache_take(const struct piece *piece, int32_t **tokens);

/* Stores a piece in its slot, replacing the old entry, unless it is not cached or has too many
 * tokens. */
void piece_cache_put(const struct piece *piece, const int32_t *tokens, size_t count);
