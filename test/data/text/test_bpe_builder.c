#include "data/text/bpe_builder.h"

#include <criterion/criterion.h>
#include <stdio.h>

#include "test/small_bpe.h"

static struct bpe bpe;
static struct bpe_builder builder;

static void begin(void) {
    small_bpe_begin(&builder, &bpe);
}

static void end(void) {
    bpe_builder_close(&builder);
    bpe_free(&bpe);
}

TestSuite(bpe_builder, .init = begin, .fini = end);

static void expect_reason(const char *reason, const char *expected) {
    cr_assert_not_null(reason, "expected: %s", expected);
    cr_expect_str_eq(reason, expected);
}

Test(bpe_builder, makes_tokens_and_merges) {
    cr_expect_null(bpe_builder_add_token(&builder, "\xc4\xa0t", 257));
    cr_expect_null(bpe_builder_add_token(&builder, BPE_END_OF_TEXT, 256));
    cr_assert_null(bpe_builder_finish_tokens(&builder));
    cr_expect_eq(bpe.vocab_size, 258);
    cr_expect_eq(bpe.end_of_text, 256);
    cr_expect_eq(bpe.starts[257] - bpe.starts[256], strlen(BPE_END_OF_TEXT));
    cr_expect_eq(memcmp(bpe.bytes + bpe.starts[256], BPE_END_OF_TEXT, 13), 0);
    cr_expect_eq(memcmp(bpe.bytes + bpe.starts[257], " t", 2), 0);
    cr_expect_eq(bpe.starts[258], bpe.starts[257] + 2);
    for (int byte = 0; byte < 256; byte++) cr_expect_eq(bpe.byte_tokens.tokens[byte], byte);
    cr_assert_null(bpe_builder_add_merge(&builder, "\xc4\xa0", "t"));
    struct merge *merges = merges_list(&bpe.merges);
    cr_assert_eq(arrlen(merges), 1);
    cr_expect(merges[0].left == ' ' && merges[0].right == 't' && merges[0].token == 257);
    arrfree(merges);
}

Test(bpe_builder, no_end_of_text_is_minus_one) {
    cr_assert_null(bpe_builder_finish_tokens(&builder));
    cr_expect_eq(bpe.end_of_text, -1);
    cr_expect_eq(bpe.vocab_size, 256);
}

Test(bpe_builder, refuses_tokens_that_are_none) {
    char name[120];
    memset(name, 'x', sizeof name);
    memcpy(name + 39, "\xc4\xa0", 2);
    name[119] = '\0';
    expect_reason(bpe_builder_add_token(&builder, "", 256), "a token without a name");
    expect_reason(bpe_builder_add_token(&builder, "a", 256), "\"a\" stands there twice");
    expect_reason(bpe_builder_add_token(&builder, "aa", -1),
                  "the number of \"aa\" is no whole number within 0 to 1048575");
    /* A name is cut between its characters. */
    expect_reason(bpe_builder_add_token(&builder, name, 1048576),
                  "the number of \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\" is no whole number "
                  "within 0 to 1048575");
    cr_expect_null(bpe_builder_add_token(&builder, "aa", 1048575));
}

Test(bpe_builder, refuses_holes) {
    cr_assert_null(bpe_builder_add_token(&builder, "aa", 257));
    expect_reason(bpe_builder_finish_tokens(&builder),
                  "\"aa\" has the number 257, but there are 257 tokens: their numbers must be 0 to "
                  "256");
}

Test(bpe_builder, refuses_a_number_given_twice) {
    cr_assert_null(bpe_builder_add_token(&builder, "aa", 255));
    expect_reason(bpe_builder_finish_tokens(&builder),
                  "\"\xc3\xbf\" and \"aa\" have the same number, 255");
}

Test(bpe_builder, refuses_what_is_not_in_the_alphabet) {
    cr_assert_null(bpe_builder_add_token(&builder, "a b", 256));
    expect_reason(bpe_builder_finish_tokens(&builder),
                  "\"a b\" is not written in GPT-2's alphabet of bytes");
}

Test(bpe_builder, refuses_a_byte_without_a_token) {
    struct bpe other;
    struct bpe_builder few;
    bpe_builder_open(&few, &other);
    cr_assert_null(bpe_builder_add_token(&few, "\xc4\x80", 0));
    expect_reason(bpe_builder_finish_tokens(&few),
                  "there is no token \"\xc4\x81\" for the byte 0x01");
    bpe_builder_close(&few);
    bpe_free(&other);
}

Test(bpe_builder, refuses_merges_of_what_is_no_token) {
    cr_assert_null(bpe_builder_add_token(&builder, "ab", 256));
    cr_assert_null(bpe_builder_finish_tokens(&builder));
    expect_reason(bpe_builder_add_merge(&builder, "xx", "b"), "\"xx\" is not in the vocabulary");
    expect_reason(bpe_builder_add_merge(&builder, "a", "xx"), "\"xx\" is not in the vocabulary");
    expect_reason(bpe_builder_add_merge(&builder, "b", "a"),
                  "\"ba\", the result of the merge, is not in the vocabulary");
    cr_assert_null(bpe_builder_add_merge(&builder, "a", "b"));
    expect_reason(bpe_builder_add_merge(&builder, "a", "b"), "\"a b\" is merged a second time");
    cr_expect_eq(bpe.merges.count, 1);
}
