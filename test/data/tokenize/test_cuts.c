#include "data/tokenize/cuts.h"

#include <criterion/criterion.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/error.h"
#include "data/util/random.h"
#include "data/tokenize/tokenizer.h"

static struct error error;

static bool safe(const char *left, const char *right) {
    char text[100];
    strcpy(text, left);
    strcat(text, right);
    return cut_is_safe(text, strlen(text), strlen(left), CUT_SPACES);
}

Test(cuts, go_between_a_word_and_white_space) {
    const char *words[] = {"a", "~", "!", "0", "'s", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80",
                           " x"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        cr_expect(safe(words[i], " b"), "%s", words[i]);
        cr_expect(safe(words[i], "\nb"), "%s", words[i]);
        cr_expect(safe(words[i], "\r\n"), "%s", words[i]);
        cr_expect(safe(words[i], "\t"), "%s", words[i]);
        cr_expect_not(safe(words[i], "b"), "%s", words[i]);
        cr_expect_not(safe(words[i], "\xc2\xa0"), "%s", words[i]);
    }
}

Test(cuts, never_after_possible_white_space_or_invalid_bytes) {
    const char *spaces[] = {" ",
                            "\n",
                            "\x1c",
                            "\x7f",
                            "\xc2\x85",
                            "\xc2\xa0",
                            "\xe1\x9a\x80",
                            "\xe1\xa0\x8e",
                            "\xe2\x80\x80",
                            "\xe2\x80\x8a",
                            "\xe2\x80\xa8",
                            "\xe2\x80\xaf",
                            "\xe2\x81\x9f",
                            "\xe3\x80\x80"};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        cr_expect_not(safe(spaces[i], " b"), "%zu", i);
    const char *broken[] = {"\x80",         "\xff",     "a\x80",    "\xc3\xa9\x80",
                            "\xed\xa0\x80", "\xc0\xaf", "\xe4\xb8", "\xf4\x90\x80\x80"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        cr_expect_not(safe(broken[i], " b"), "%zu", i);
    cr_expect_not(cut_is_safe(" a", 2, 0, CUT_SPACES));
    cr_expect_not(cut_is_safe("a ", 2, 2, CUT_SPACES));
}

/* Builds a text of difficult parts: white space of all kinds, contractions, truncated
 * characters. */
static size_t nasty_text(char *text, uint64_t number) {
    static const char *const pieces[] = {
        "a",    "B",        "'s",           "'ll",          "'",       "7",
        "!",    "\xc3\xa9", "\xe4\xb8\xad", "\xcc\x81",     " ",       " ",
        "\n",   "\t",       "\r\n",         "\xc2\xa0",     "  ",      "\x85",
        "\x1c", "\xff",     "\xe3\x80\x80", "\xe1\xa0\x8e", "\xf0\x9f"};
    size_t size = 0;
    for (int i = 0; i < 12; i++) {
        const char *piece =
            pieces[random_bits(5, number, (uint64_t)i) % (sizeof pieces / sizeof *pieces)];
        memcpy(text + size, piece, strlen(piece));
        size += strlen(piece);
    }
    return size;
}

/* The two parts have the tokens of the whole. */
Test(cuts, keep_the_tokens) {
    struct tokenizer tokenizer;
    char text[100];
    int cuts = 0;
    cr_assert_eq(tokenizer_open(&tokenizer, TOKENIZER_GPT2, "test/golden/tokenizer/small", &error),
                 0, "%s", error.text);
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(&tokenizer);
    int32_t *whole = NULL, *parts = NULL;
    for (uint64_t number = 0; number < 20000; number++) {
        const size_t size = nasty_text(text, number);
        arrsetlen(whole, 0);
        tokenizer_encode(encoder, &whole, text, size, false, &error);
        for (size_t at = 1; at < size; at++) {
            if (!cut_is_safe(text, size, at, CUT_SPACES)) continue;
            arrsetlen(parts, 0);
            tokenizer_encode(encoder, &parts, text, at, false, &error);
            tokenizer_encode(encoder, &parts, text + at, size - at, false, &error);
            cr_assert(arrlen(parts) == arrlen(whole) &&
                          memcmp(parts, whole, arrlenu(whole) * sizeof *whole) == 0,
                      "text %d at %zu", (int)number, at);
            cuts++;
        }
    }
    cr_assert_gt(cuts, 10000);
    arrfree(whole);
    arrfree(parts);
    tokenizer_encoder_close(encoder);
    tokenizer_close(&tokenizer);
}

Test(cuts, first_and_last_of_a_range) {
    const char *text = "ab cd  ef\ng";
    const size_t size = strlen(text); /* safe: 2, 5, 9 */
    cr_expect_eq(cut_last(text, size, 1, size - 1, CUT_SPACES), 9);
    cr_expect_eq(cut_last(text, size, 1, 8, CUT_SPACES), 5);
    cr_expect_eq(cut_last(text, size, 5, 5, CUT_SPACES), 5);
    cr_expect_eq(cut_last(text, size, 3, 4, CUT_SPACES), CUT_NONE);
    cr_expect_eq(cut_last(text, size, 1, 1, CUT_SPACES), CUT_NONE);
    cr_expect_eq(cut_first(text, size, 1, size - 1, CUT_SPACES), 2);
    cr_expect_eq(cut_first(text, size, 3, 5, CUT_SPACES), 5);
    cr_expect_eq(cut_first(text, size, 6, 8, CUT_SPACES), CUT_NONE);
}

Test(cuts, between_characters) {
    const char *text = "a\xc3\xa9\xf0\x9f\x98\x80z";
    const size_t expected[] = {0, 1, 1, 3, 3, 3, 3, 7, 8};
    for (size_t at = 1; at <= 8; at++)
        cr_expect_eq(cut_between_characters(text, 8, at), expected[at], "%zu", at);
    cr_expect_eq(cut_between_characters("\x80\x80\x80\x80\x80\x80", 6, 5), 5);
    cr_expect_eq(cut_between_characters("\x80\x80", 2, 1), 1);
}
