/* Runs the program itself with a vocabulary beyond 16 bits. */
#include "test/data/corpus/prepare_fixture.h"

#include "data/tokenize/tokenizer.h"
#include "data/corpus/tokenizer_record.h"
#include "test/data/tokenize/wide_vocabulary.h"

static struct tokenizer tokenizer;

static void set_up(void) {
    make_folder();
    cr_assert_eq(directory_create(in_folder("wide"), &error), 0, "%s", error.text);
    write_wide_vocabulary(in_folder("wide"));
    cr_assert_eq(tokenizer_open(&tokenizer, TOKENIZER_GPT2, in_folder("wide"), &error), 0, "%s",
                 error.text);
}

static void tear_down(void) {
    tokenizer_close(&tokenizer);
    remove_folder();
}

TestSuite(prepare_wide, .init = set_up, .fini = tear_down);

static void expect_shard(const char *name, const int32_t *expected, size_t count) {
    struct tokens tokens;
    cr_assert_eq(tokens_open(&tokens, in_folder("%s", name), &error), 0, "%s", error.text);
    cr_assert_eq(tokens.count, count);
    cr_expect_eq(tokens.shards[0].token_bytes, 4);
    for (size_t i = 0; i < count; i++)
        cr_expect_eq(token_at(&tokens.shards[0], i), expected[i], "%zu", i);
    tokens_close(&tokens);
}

Test(prepare_wide, shards_have_32_bits) {
    const int32_t expected[] = {WIDE_END_OF_TEXT, WIDE_THE, 'm', WIDE_END_OF_TEXT, WIDE_TH, 'a'};
    cr_assert_eq(tokenizer.vocab_size, WIDE_VOCABULARY);
    write_text("a.txt", "them<|endoftext|>tha");
    cr_assert_eq(run("--tokenizer gpt2:wide --val-fraction 0 --out set a.txt"), 0, "%s",
                 error_text);
    cr_expect_not_null(strstr(out_text, "vocabulary 70003"), "%s", out_text);
    expect_shard("set_train_000000.bin", expected, 6);
    /* The text as bytes, in 16 bits, replaces them. */
    cr_assert_eq(run("--tokenizer bytes --force --val-fraction 0 --out set a.txt"), 0, "%s",
                 error_text);
    expect_tokens("set_train_*", "them<|endoftext|>tha");
}

Test(prepare_wide, the_record_names_the_tokenizer) {
    struct tokenizer_record record;
    write_text("a.txt", "the thing");
    cr_assert_eq(run("--tokenizer gpt2:wide --val-fraction 0 --out set a.txt"), 0, "%s",
                 error_text);
    cr_assert_eq(tokenizer_record_of_shard(&record, in_folder("set_train_000000.bin"), &error), 0,
                 "%s", error.text);
    cr_expect_eq(record.vocab_size, WIDE_VOCABULARY);
    cr_expect_eq(tokenizer_record_check(&record, &tokenizer, &error), 0, "%s", error.text);
    /* Another order of merges is another tokenizer. */
    write_text("wide/merges.txt", "t h\nh e\nth e\n");
    struct tokenizer other;
    cr_assert_eq(tokenizer_open(&other, TOKENIZER_GPT2, in_folder("wide"), &error), -1);
    write_text("wide/merges.txt", "t h\n");
    cr_assert_eq(tokenizer_open(&other, TOKENIZER_GPT2, in_folder("wide"), &error), 0, "%s",
                 error.text);
    cr_expect_eq(tokenizer_record_check(&record, &other, &error), -1);
    cr_expect_not_null(strstr(error.text, "merges.txt"), "%s", error.text);
    tokenizer_close(&other);
}

/* No bits are lost with threads, cached words, and pieces too long for the cache. */
Test(prepare_wide, tokens_decode_to_the_text) {
    char *text = NULL, *decoded = NULL;
    for (int i = 0; arrlenu(text) < 500000; i++) {
        char word[200];
        const int size =
            snprintf(word, sizeof word, "the%*sth%d the ", i % 97 == 0 ? 120 : 1, "x", i % 1000);
        memcpy(arraddnptr(text, size), word, (size_t)size);
    }
    write_bytes("a.txt", text, arrlenu(text));
    cr_assert_eq(
        run("--tokenizer gpt2:wide --val-fraction 0 --shard-tokens 100000 --out set a.txt"), 0,
        "%s", error_text);
    struct tokens tokens;
    size_t large = 0;
    cr_assert_eq(tokens_open(&tokens, in_folder("set_train_*"), &error), 0, "%s", error.text);
    cr_expect_gt(arrlen(tokens.shards), 1);
    for (size_t s = 0; s < arrlenu(tokens.shards); s++)
        for (uint64_t i = s == 0; i < tokens.shards[s].count; i++) {
            const int32_t token = token_at(&tokens.shards[s], i);
            size_t size;
            const uint8_t *bytes = tokenizer_bytes(&tokenizer, token, &size);
            memcpy(arraddnptr(decoded, size), bytes, size);
            large += token > UINT16_MAX;
        }
    tokens_close(&tokens);
    cr_assert_eq(arrlenu(decoded), arrlenu(text));
    cr_expect(memcmp(decoded, text, arrlenu(text)) == 0);
    cr_expect_gt(large, 30000);
    arrfree(text);
    arrfree(decoded);
}
