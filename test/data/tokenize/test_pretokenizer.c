/* GPT-2's pattern cuts text as in tiktoken and Hugging Face's tokenizers; test_split_pattern.c
 * tests other patterns. */
#include "data/tokenize/pretokenizer.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/error.h"
#include "data/util/sha256.h"
#include "data/util/utf8.h"
#include "data/tokenize/unicode.h"
#include "test/cpu_time.h"
#include "test/patterns.h"

static struct pretokenizer pretokenizer;
static struct pretokenizer_rule rule;
static uint8_t *atoms;

static void begin(void) {
    struct error error;
    atoms = unicode_atoms();
    cr_assert_not_null(atoms);
    rule.pattern = split_pattern_open(GPT2_PATTERN, SPLIT_TOKENIZERS, atoms, &error);
    cr_assert_not_null(rule.pattern, "%s", error.text);
}

static void end(void) {
    split_pattern_close(rule.pattern);
    arrfree(atoms);
}

TestSuite(pretokenizer, .init = begin, .fini = end);

static void expect_cut(const char *bars) {
    expect_cut_by(&rule, 1, bars);
}

Test(pretokenizer, words_numbers_and_symbols_include_one_space) {
    expect_cut("");
    expect_cut("Hello|,| world|!|");
    expect_cut("a|1|b|22| c| 3|");
    expect_cut("x|.-!|y| .-!| z|");
    expect_cut("f\xc3\xbcr| \xe6\xbc\xa2\xe5\xad\x97|\xef\xbc\x91| \xd9\xa1\xd9\xa2|");
    /* A combining mark and U+180E count as symbols. */
    expect_cut("e|\xcc\x81|1|\xcc\x81|");
    expect_cut("a| \xe1\xa0\x8e|a|\xe1\xa0\x8e!|");
    expect_cut("\x1c| \x1f|");
}

Test(pretokenizer, endings_of_english_words) {
    expect_cut("it|'s| he|'ll| we|'ve| I|'d| they|'re| don|'t| I|'m|");
    expect_cut("IT|'|S| HE|'|LL|");
    expect_cut("'s|'t|'re|'ve|'m|'ll|'d|");
    expect_cut(" '|s|");
    expect_cut("'s|x|'re|d|'ll|ama| '|t|");
    expect_cut("''|s|");
    expect_cut("!'|m|");
    expect_cut("l|'|r|");
    expect_cut("'|v|");
    expect_cut("'|l|");
    expect_cut("it|\xe2\x80\x99|s|");
}

Test(pretokenizer, white_space_leaves_its_last_character_to_the_next_piece) {
    expect_cut("a| | b|");
    expect_cut("a|  | b|");
    expect_cut("a|\n|b|\n|\n|c|");
    expect_cut("a| \t|\t|b|");
    expect_cut("   |");
    expect_cut("a|   |");
    expect_cut(" \n| a|");
    expect_cut(" |\n|a|");
    expect_cut("a|\r|\n|b|");
    expect_cut("a|\xc2\xa0|\xc2\xa0|b|");
    expect_cut("a|\xe3\x80\x80|b|");
    expect_cut("a| |\xc2\xa0|b|");
    expect_cut("a|\xc2\xa0| b|");
}

Test(pretokenizer, invalid_bytes_are_separate_pieces) {
    expect_cut("\xff|");
    expect_cut("a|\xff\xfe|b|");
    expect_cut("a| |\xff| b|");
    expect_cut("  |\xff|");
    /* Invalid bytes do not matter to lookahead: both spaces are one piece, as at the end of a
     * text. */
    expect_cut("a|  |\xff|");
    expect_cut("a|\xe2\x82|");
    expect_cut("\xe2\x82|a|");
    expect_cut("\xc3\xa4|\xc3|\xc3\xa4|");
    expect_cut("\xed\xa0\x80|!|\xc0\x80|");
    expect_cut("it|\xf0\x9f\x98|'s|");
}

/* Returns L for a character that continues a word, N for a number, o for another symbol, s for
 * white space. */
static char class_of(uint32_t code) {
    static const char neighbours[] = "a1!", classes[] = "LNo";
    char found = 's';
    for (int i = 0; i < 3; i++) {
        char text[5] = {neighbours[i]};
        const size_t size = 1 + utf8_write((uint8_t *)text + 1, code);
        size_t from, to;
        pretokenizer_begin(&pretokenizer, &rule, 1, text, size);
        cr_assert(pretokenizer_next(&pretokenizer, &from, &to));
        if (to == size) found = classes[i];
    }
    return found;
}

static bool is_white_space(uint32_t code) {
    return (code >= 9 && code <= 13) || code == ' ' || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

/* Hashes the classes of all characters as in tiktoken and tokenizers, see
 * test/golden/tokenizer/README.md. */
Test(pretokenizer, characters_have_the_classes_of_unicode_16) {
    struct sha256 hash;
    char hex[SHA256_HEX_MAX];
    sha256_begin(&hash);
    for (uint32_t code = 0; code < 0x110000; code++) {
        if (code >= 0xd800 && code <= 0xdfff) continue;
        const char class = class_of(code);
        if ((class == 's') != is_white_space(code)) cr_assert_fail("U+%04X", code);
        sha256_add(&hash, &class, 1);
    }
    sha256_end(hex, &hash);
    cr_expect_str_eq(hex, "7b6842baf8460a2ef9408456d88877780f48765c59d954dd2ab73f877760c6a1");
}

/* Cuts `size` bytes made of copies of one part. */
static void cut_copies(const void *argument, size_t size) {
    const char *part = argument;
    const size_t length = strlen(part);
    size_t from, to, at = 0;
    char *text = malloc(size);
    cr_assert_not_null(text);
    for (size_t i = 0; i < size; i++) text[i] = part[i % length];
    pretokenizer_begin(&pretokenizer, &rule, 1, text, size);
    for (; pretokenizer_next(&pretokenizer, &from, &to); at = to)
        cr_assert(from == at && to > from);
    cr_assert_eq(at, size);
    free(text);
}

Test(pretokenizer, hostile_texts_take_linear_time) {
    static const char *const parts[] = {"a",
                                        " ",
                                        "\n",
                                        "1",
                                        "'",
                                        "!",
                                        "\xff",
                                        "a\xff",
                                        " \n",
                                        "\xe6\xbc\xa2",
                                        "\xe3\x80\x80",
                                        "\xcc\x81",
                                        "a\xf0\xb1\x8d\x90",
                                        "\xf0\x9f\x98\x80",
                                        "\xe2\x82",
                                        "'s",
                                        "'l",
                                        "  a",
                                        ("\xf0\x9e\x97\xb1"
                                         "1")};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        cr_expect(grows_in_proportion(cut_copies, parts[i], 1000000), "copies of part %zu", i);
}
