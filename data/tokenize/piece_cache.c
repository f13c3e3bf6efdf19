#include "data/tokenize/piece_cache.h"

#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/hash.h"

_Static_assert(sizeof(struct piece_cache_entry) == 128, "two lines of a cache, and a power of two");

void piece_cache_open(struct piece_cache *cache) {
    const size_t bytes = PIECE_CACHE_ENTRIES * sizeof *cache->entries;
    cache->entries = aligned_alloc(sizeof *cache->entries, bytes);
    if (cache->entries) memset(cache->entries, 0, bytes);
}

void piece_cache_close(struct piece_cache *cache) {
    free(cache->entries);
    *cache = (struct piece_cache){0};
}

static uint64_t load(const uint8_t *bytes, size_t size) {
    uint64_t word = 0;
    if (size >= 8) {
        memcpy(&word, bytes, 8);
    } else if (size >= 4) {
        uint32_t first, last;
        memcpy(&first, bytes, 4);
        memcpy(&last, bytes + size - 4, 4);
        word = (uint64_t)last << 32 | first;
    } else if (size > 0) {
        word = (uint64_t)bytes[0] << 16 | (uint64_t)bytes[size / 2] << 8 | bytes[size - 1];
    }
    return word;
}

static uint64_t mix(uint64_t word) {
    word *= hash_multiplier;
    return word ^ word >> 32;
}

/* Pieces of more than 8 bytes are read in 8-byte words; the last word may overlap the one
 * before. */
uint64_t piece_hash(const uint8_t *bytes, size_t size) {
    uint64_t sum = mix(load(bytes, size) + size);
    for (size_t at = 8; at < size; at += 8)
        sum = mix(sum + load(bytes + (at + 8 <= size ? at : size - 8), 8));
    return mix(sum);
}

struct piece piece_cache_lookup(const struct piece_cache *cache, const uint8_t *bytes,
                                size_t size) {
    struct piece piece = {.bytes = bytes, .size = size, .hash = piece_hash(bytes, size)};
    if (cache->entries && size > 0 && size <= PIECE_CACHE_BYTES_MAX) {
        piece.entry = &cache->entries[piece.hash % PIECE_CACHE_ENTRIES];
        __builtin_prefetch(piece.entry);
    }
    return piece;
}

/* Copies all token slots of the first cache line, which is faster than copying the exact number. */
bool piece_cache_take(const struct piece *piece, int32_t **tokens) {
    const struct piece_cache_entry *entry = piece->entry;
    if (!entry || entry->size != piece->size ||
        memcmp(entry->bytes, piece->bytes, piece->size) != 0)
        return false;
    const size_t before = arrlenu(*tokens);
    int32_t *added = arraddnptr(*tokens, PIECE_CACHE_TOKENS_MAX);
    memcpy(added, entry->tokens, PIECE_CACHE_TOKENS_FIRST * sizeof *added);
    if (entry->count > PIECE_CACHE_TOKENS_FIRST)
        memcpy(added + PIECE_CACHE_TOKENS_FIRST, entry->tokens + PIECE_CACHE_TOKENS_FIRST,
               (PIECE_CACHE_TOKENS_MAX - PIECE_CACHE_TOKENS_FIRST) * sizeof *added);
    arrsetlen(*tokens, before + entry->count);
    return true;
}

void piece_cache_put(const struct piece *piece, const int32_t *tokens, size_t count) {
    struct piece_cache_entry *entry = piece->entry;
    if (!entry || count > PIECE_CACHE_TOKENS_MAX) return;
    entry->size = (uint8_t)piece->size;
    entry->count = (uint8_t)count;
    memcpy(entry->bytes, piece->bytes, piece->size);
    if (count > 0) memcpy(entry->tokens, tokens, count * sizeof *tokens);
}
