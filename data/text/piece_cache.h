/* Pieces that were encoded before and their tokens: text repeats its words. A table of fixed size,
 * 4 MiB, in which a new piece takes the place of an older one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Longer pieces are rare and not kept. An entry is two lines of the processor's cache, and most
 * pieces have no more tokens than the first one holds. */
enum {
    PIECE_CACHE_ENTRIES = 1 << 15,
    PIECE_CACHE_BYTES_MAX = 30,
    PIECE_CACHE_TOKENS_FIRST = 8, /* in the first line */
    PIECE_CACHE_TOKENS_MAX = 24
};

struct piece_cache_entry {
    uint8_t size; /* of the piece; 0: the place is empty */
    uint8_t count;
    uint8_t bytes[PIECE_CACHE_BYTES_MAX];
    int32_t tokens[PIECE_CACHE_TOKENS_MAX];
};

/* Zeros where nothing was allocated; memory that is short is no failure, but there is no cache. */
struct piece_cache {
    struct piece_cache_entry *entries; /* [PIECE_CACHE_ENTRIES] */
};

void piece_cache_open(struct piece_cache *cache);
void piece_cache_close(struct piece_cache *cache);

/* Where a piece is, or would be put: it is there if piece_cache_holds. NULL where no piece of this
 * size is kept. */
struct piece_cache_entry *piece_cache_place(const struct piece_cache *cache, const uint8_t *piece,
                                            size_t size);
bool piece_cache_holds(const struct piece_cache_entry *entry, const uint8_t *piece, size_t size);

/* Puts a piece there, in place of what was there, unless it has too many tokens. */
void piece_cache_put(struct piece_cache_entry *entry, const uint8_t *piece, size_t size,
                     const int32_t *tokens, size_t count);
