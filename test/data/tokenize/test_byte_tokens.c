#include "data/tokenize/merges.h"

#include <criterion/criterion.h>
#include <stdio.h>

#include "data/util/random.h"
#include "test/small_bpe.h"

static void merge(const struct subwords *bpe, int32_t **tokens, const void *piece, size_t size) {
    struct merges_scratch scratch = {0};
    arrsetlen(*tokens, 0);
    byte_tokens_merge(&bpe->bytes, &bpe->merges, &scratch, tokens, piece, size);
    merges_scratch_free(&scratch);
}

/* Expects tokens that spell `spelled`, their bytes with bars between. */
static void expect_spelled(const struct subwords *bpe, const char *piece, const char *spelled) {
    int32_t *tokens = NULL;
    char text[256] = "";
    merge(bpe, &tokens, piece, strlen(piece));
    for (size_t i = 0; i < arrlenu(tokens); i++) {
        size_t size;
        const uint8_t *bytes = subwords_bytes(bpe, tokens[i], &size);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%.*s", i ? "|" : "", (int)size,
                 (const char *)bytes);
    }
    cr_expect_str_eq(text, spelled);
    arrfree(tokens);
}

Test(byte_tokens, merges_the_lowest_rank_first_and_the_leftmost_of_equals) {
    static const char *const merges[] = {"b c", "a b", "a a", "bc d", "a bc", "ab c", "aa aa"};
    struct subwords bpe;
    small_bpe(&bpe, merges, 7);
    expect_spelled(&bpe, "abd", "ab|d");
    expect_spelled(&bpe, "abcd", "a|bcd");
    expect_spelled(&bpe, "abc", "abc");
    expect_spelled(&bpe, "aaa", "aa|a");
    expect_spelled(&bpe, "aaab", "aa|ab");
    expect_spelled(&bpe, "aaaaaaa", "aaaa|aa|a");
    expect_spelled(&bpe, "x", "x");
    expect_spelled(&bpe, "", "");
    subwords_free(&bpe);
}

/* The rank is the index of a merge, not the token. Here the later merge produces a token of an
 * earlier one. */
Test(byte_tokens, two_merges_may_have_one_result) {
    static const char *const merges[] = {"b c", "a bc", "c d", "a b", "ab c", "abc x", "ab cd"};
    struct subwords bpe;
    small_bpe(&bpe, merges, 7);
    struct merge *list = merges_list(&bpe.merges);
    cr_assert_eq(list[1].token, list[4].token);
    arrfree(list);
    expect_spelled(&bpe, "abcx", "abcx");
    expect_spelled(&bpe, "abcd", "abc|d");
    expect_spelled(&bpe, "abxcd", "ab|x|cd");
    subwords_free(&bpe);
}

Test(byte_tokens, without_merges_bytes_are_tokens) {
    struct subwords bpe;
    int32_t *tokens = NULL;
    uint8_t piece[256];
    for (int i = 0; i < 256; i++) piece[i] = (uint8_t)i;
    small_bpe(&bpe, NULL, 0);
    merge(&bpe, &tokens, piece, 256);
    cr_assert_eq(arrlenu(tokens), 256);
    for (int i = 0; i < 256; i++) cr_expect_eq(tokens[i], i);
    arrfree(tokens);
    subwords_free(&bpe);
}

/* Returns the next number of a series, below `limit`. */
static uint32_t random_below(uint64_t *series, size_t limit) {
    return (uint32_t)(random_bits(4, 0, (*series)++) % limit);
}

/* A random vocabulary over four letters, in which merges have merges as parts. The tokens' order
 * is not that of the ranks. */
static void random_bpe(struct subwords *bpe, uint64_t *random, int count) {
    char **names = NULL, **pairs = NULL, **shuffled = NULL;
    for (int i = 0; i < 4; i++) arrput(names, strndup("abcd" + i, 1));
    while (arrlen(names) < count + 4) {
        const char *left = names[random_below(random, arrlenu(names))];
        const char *right = names[random_below(random, arrlenu(names))];
        char name[64], pair[64];
        snprintf(name, sizeof name, "%s%s", left, right);
        snprintf(pair, sizeof pair, "%s %s", left, right);
        size_t known = 0;
        while (known < arrlenu(names) && strcmp(names[known], name) != 0) known++;
        if (strlen(name) >= 12 || known < arrlenu(names)) continue;
        arrput(names, strdup(name));
        arrput(pairs, strdup(pair));
    }
    for (int i = 0; i < 4; i++) free(names[i]);
    arrdeln(names, 0, 4);
    for (size_t i = 0, j = arrlenu(names) - 1; i < j; i++, j--) {
        char *name = names[i];
        names[i] = names[j];
        names[j] = name;
    }
    /* Any order of ranks, including a part with a higher rank than the whole. */
    for (int i = count; i-- > 0;) {
        const int other = (int)random_below(random, (size_t)i + 1);
        arrput(shuffled, pairs[other]);
        pairs[other] = pairs[i];
    }
    small_bpe_of(bpe, names, shuffled);
    for (int i = 0; i < count; i++) {
        free(names[i]);
        free(shuffled[i]);
    }
    arrfree(names);
    arrfree(pairs);
    arrfree(shuffled);
}

static void expect_like_naive(const struct subwords *bpe, const uint8_t *piece, size_t size) {
    int32_t *tokens = NULL, *expected = NULL;
    merge(bpe, &tokens, piece, size);
    naive_merge(bpe, &expected, piece, size);
    cr_assert_eq(arrlenu(tokens), arrlenu(expected), "%.*s", (int)size, (const char *)piece);
    cr_assert_eq(memcmp(tokens, expected, arrlenu(tokens) * sizeof *tokens), 0, "%.*s", (int)size,
                 (const char *)piece);
    arrfree(tokens);
    arrfree(expected);
}

Test(byte_tokens, long_and_short_pieces_merge_by_the_definition) {
    uint64_t random = 0;
    for (int round = 0; round < 30; round++) {
        struct subwords bpe;
        uint8_t piece[130];
        random_bpe(&bpe, &random, 5 + round * 8);
        for (size_t size = 1; size <= sizeof piece; size++) {
            const uint32_t letters = 1 + random_below(&random, 4);
            for (size_t i = 0; i < size; i++)
                piece[i] = (uint8_t)('a' + random_below(&random, letters));
            expect_like_naive(&bpe, piece, size);
        }
        subwords_free(&bpe);
    }
}

/* They split between c and a, and between a and a. */
Test(byte_tokens, runs_without_common_tokens_are_merged_separately) {
    static const char *const merges[] = {"a b", "ab ab", "b c", "c c"};
    struct subwords bpe;
    small_bpe(&bpe, merges, 4);
    cr_expect(bpe.bytes.joined['b']['a'] && bpe.bytes.joined['c']['c']);
    cr_expect_not(bpe.bytes.joined['c']['a'] || bpe.bytes.joined['a']['a']);
    expect_spelled(&bpe, "aababcabccca", "a|abab|c|ab|cc|c|a");
    subwords_free(&bpe);
}
