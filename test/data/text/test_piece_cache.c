#include "data/text/piece_cache.h"
#include "data/text/vocabulary.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct piece_cache cache;

static void begin(void) {
    piece_cache_open(&cache);
    cr_assert_not_null(cache.entries);
}

static void end(void) {
    piece_cache_close(&cache);
}

TestSuite(piece_cache, .init = begin, .fini = end);

Test(piece_cache, keeps_pieces_of_all_sizes_up_to_the_largest) {
    uint8_t piece[PIECE_CACHE_BYTES_MAX + 1];
    const int32_t tokens[PIECE_CACHE_TOKENS_MAX] = {
        7, 8, [PIECE_CACHE_TOKENS_MAX - 1] = VOCABULARY_MAX - 1};
    for (size_t i = 0; i < sizeof piece; i++) piece[i] = (uint8_t)(i * 37);
    for (size_t size = 1; size <= PIECE_CACHE_BYTES_MAX; size++) {
        struct piece_cache_entry *entry = piece_cache_place(&cache, piece, size);
        cr_assert_not_null(entry);
        cr_expect_not(piece_cache_holds(entry, piece, size));
        piece_cache_put(entry, piece, size, tokens, PIECE_CACHE_TOKENS_MAX);
        cr_expect_eq(piece_cache_place(&cache, piece, size), entry);
        cr_expect(piece_cache_holds(entry, piece, size));
        cr_expect_eq(entry->count, PIECE_CACHE_TOKENS_MAX);
        cr_expect_eq(memcmp(entry->tokens, tokens, sizeof tokens), 0);
        /* Each byte tells pieces apart, and so does the size. */
        for (size_t i = 0; i < size; i++) {
            uint8_t other[PIECE_CACHE_BYTES_MAX];
            memcpy(other, piece, size);
            other[i] ^= 0x80;
            cr_expect_not(piece_cache_holds(entry, other, size));
            cr_expect_neq(piece_cache_place(&cache, other, size), entry, "%zu, %zu", size, i);
        }
        if (size > 1) cr_expect_not(piece_cache_holds(entry, piece, size - 1));
    }
    cr_expect_null(piece_cache_place(&cache, piece, PIECE_CACHE_BYTES_MAX + 1));
    cr_expect_null(piece_cache_place(&cache, piece, 0));
}

Test(piece_cache, too_many_tokens_are_not_kept) {
    const uint8_t piece[] = "pieces";
    const int32_t tokens[PIECE_CACHE_TOKENS_MAX + 1] = {1};
    struct piece_cache_entry *entry = piece_cache_place(&cache, piece, 6);
    piece_cache_put(entry, piece, 6, tokens, PIECE_CACHE_TOKENS_MAX + 1);
    cr_expect_not(piece_cache_holds(entry, piece, 6));
}

/* Few places stay empty when there are several times as many pieces; the last one put is there. */
Test(piece_cache, pieces_spread_and_take_the_place_of_older_ones) {
    char piece[16];
    for (int i = 0; i < 4 * PIECE_CACHE_ENTRIES; i++) {
        const size_t size = (size_t)snprintf(piece, sizeof piece, " word%d", i);
        const int32_t token = i;
        struct piece_cache_entry *entry = piece_cache_place(&cache, (uint8_t *)piece, size);
        piece_cache_put(entry, (uint8_t *)piece, size, &token, 1);
        cr_assert(piece_cache_holds(entry, (uint8_t *)piece, size));
        cr_assert_eq(entry->tokens[0], token);
    }
    int empty = 0;
    for (int i = 0; i < PIECE_CACHE_ENTRIES; i++) empty += cache.entries[i].size == 0;
    cr_expect_lt(empty, PIECE_CACHE_ENTRIES / 20);
}

Test(piece_cache, without_memory_nothing_is_kept) {
    const struct piece_cache none = {0};
    cr_expect_null(piece_cache_place(&none, (const uint8_t *)"a", 1));
}
