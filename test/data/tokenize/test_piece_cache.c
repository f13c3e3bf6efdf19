#include "data/tokenize/piece_cache.h"
#include "data/tokenize/vocabulary.h"
#include "data/util/hash.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include <stb/stb_ds.h>

static struct piece_cache cache;

/* The seed of hashes is fixed, so that pieces have the same slots in every run. */
static void begin(void) {
    hash_multiplier = UINT64_C(0x9e3779b97f4a7c15);
    piece_cache_open(&cache);
    cr_assert_not_null(cache.entries);
}

static void end(void) {
    piece_cache_close(&cache);
}

static bool holds(const uint8_t *bytes, size_t size) {
    int32_t *tokens = NULL;
    const struct piece piece = piece_cache_lookup(&cache, bytes, size);
    const bool found = piece_cache_take(&piece, &tokens);
    arrfree(tokens);
    return found;
}

TestSuite(piece_cache, .init = begin, .fini = end);

Test(piece_cache, keeps_pieces_of_all_sizes_up_to_the_largest) {
    uint8_t bytes[PIECE_CACHE_BYTES_MAX + 1];
    const int32_t tokens[PIECE_CACHE_TOKENS_MAX] = {
        7, 8, [PIECE_CACHE_TOKENS_MAX - 1] = VOCABULARY_MAX - 1};
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 37);
    for (size_t size = 1; size <= PIECE_CACHE_BYTES_MAX; size++) {
        const struct piece piece = piece_cache_lookup(&cache, bytes, size);
        int32_t *taken = NULL;
        arrput(taken, -5);
        cr_assert_not_null(piece.entry);
        cr_expect_not(piece_cache_take(&piece, &taken));
        piece_cache_put(&piece, tokens, PIECE_CACHE_TOKENS_MAX);
        cr_expect_eq(piece_cache_lookup(&cache, bytes, size).entry, piece.entry);
        cr_expect(piece_cache_take(&piece, &taken));
        cr_assert_eq(arrlen(taken), 1 + PIECE_CACHE_TOKENS_MAX);
        cr_expect(taken[0] == -5 && memcmp(taken + 1, tokens, sizeof tokens) == 0);
        /* Pieces that differ in one byte or in size are distinct. */
        for (size_t i = 0; i < size; i++) {
            uint8_t other[PIECE_CACHE_BYTES_MAX];
            memcpy(other, bytes, size);
            other[i] ^= 0x80;
            cr_expect_not(piece_cache_take(
                &(struct piece){.bytes = other, .size = size, .entry = piece.entry}, &taken));
            cr_expect_neq(piece_cache_lookup(&cache, other, size).entry, piece.entry, "%zu, %zu",
                          size, i);
        }
        cr_expect_not(piece_cache_take(
            &(struct piece){.bytes = bytes, .size = size - 1, .entry = piece.entry}, &taken));
        arrfree(taken);
    }
    cr_expect_null(piece_cache_lookup(&cache, bytes, PIECE_CACHE_BYTES_MAX + 1).entry);
    cr_expect_null(piece_cache_lookup(&cache, bytes, 0).entry);
}

Test(piece_cache, few_many_and_no_tokens_are_stored) {
    const int32_t tokens[PIECE_CACHE_TOKENS_MAX] = {9, 8, 7, 6, 5, 4, 3, 2, 1};
    for (size_t count = 0; count <= PIECE_CACHE_TOKENS_FIRST + 1; count++) {
        const struct piece piece = piece_cache_lookup(&cache, (const uint8_t *)"piece", 5);
        int32_t *taken = NULL;
        piece_cache_put(&piece, tokens, count);
        cr_assert(piece_cache_take(&piece, &taken));
        cr_assert_eq(arrlenu(taken), count);
        cr_expect(count == 0 || memcmp(taken, tokens, count * sizeof *tokens) == 0);
        arrfree(taken);
    }
}

Test(piece_cache, too_many_tokens_and_long_pieces_are_not_cached) {
    const uint8_t bytes[PIECE_CACHE_BYTES_MAX + 1] = "pieces";
    const int32_t tokens[PIECE_CACHE_TOKENS_MAX + 1] = {1};
    const struct piece piece = piece_cache_lookup(&cache, bytes, 6);
    piece_cache_put(&piece, tokens, PIECE_CACHE_TOKENS_MAX + 1);
    cr_expect_not(holds(bytes, 6));
    const struct piece longer = piece_cache_lookup(&cache, bytes, sizeof bytes);
    piece_cache_put(&longer, tokens, 1);
    cr_expect_not(holds(bytes, sizeof bytes));
}

/* Few slots stay empty with several times as many pieces; the last piece stored is found. */
Test(piece_cache, pieces_spread_and_replace_older_ones) {
    char text[16];
    for (int i = 0; i < 4 * PIECE_CACHE_ENTRIES; i++) {
        const size_t size = (size_t)snprintf(text, sizeof text, " word%d", i);
        const int32_t token = i;
        const struct piece piece = piece_cache_lookup(&cache, (uint8_t *)text, size);
        piece_cache_put(&piece, &token, 1);
        cr_assert(holds((uint8_t *)text, size));
        cr_assert_eq(piece.entry->tokens[0], token);
    }
    int empty = 0;
    for (int i = 0; i < PIECE_CACHE_ENTRIES; i++) empty += cache.entries[i].size == 0;
    cr_expect_lt(empty, PIECE_CACHE_ENTRIES / 20);
}

Test(piece_cache, without_memory_nothing_is_cached) {
    const struct piece_cache none = {0};
    cr_expect_null(piece_cache_lookup(&none, (const uint8_t *)"a", 1).entry);
}
