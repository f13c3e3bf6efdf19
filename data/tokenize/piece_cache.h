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

/* A piece of text on its way to its tokens. */
struct piece {
    const uint8_t *bytes;
    size_t size; /* 0: there is none */
    uint64_t hash;
    struct piece_cache_entry *entry; /* where it is or would be put; NULL: it is not kept */
};

/* Of all bytes; 0 for none. */
uint64_t piece_hash(const uint8_t *bytes, size_t size);

/* Looks up where a piece is or would be put, and has the processor fetch that: it takes long, so
 * best is to look up the next piece before this one is encoded. */
struct piece piece_cache_place(const struct piece_cache *cache, const uint8_t *bytes, size_t size);

/* Appends the tokens to *tokens, an stb_ds array, if the piece is there; else returns false. */
bool piece_cache_take(const struct piece *piece, int32_t **tokens);

/* Puts a piece there, in place of what was there, unless it is not kept or has too many tokens. */
void piece_cache_put(const struct piece *piece, const int32_t *tokens, size_t count);
