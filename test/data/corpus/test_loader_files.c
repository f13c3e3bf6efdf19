/* Batches of shards of both widths on the disk. */
#include "test/data/corpus/loader_fixture.h"
#include "test/data/corpus/tokens_fixture.h"

TestSuite(loader_files, .init = make_folder, .fini = remove_folder);

/* A shard of the tokens first, first + 1 ... */
static void write_wide(const char *name, uint32_t first, uint32_t count) {
    uint32_t *tokens = malloc(count * sizeof *tokens);
    for (uint32_t i = 0; i < count; i++) tokens[i] = first + i;
    write_raw(name, SHARD_MAGIC_32, SHARD_VERSION_32, count, tokens, count * sizeof *tokens);
    free(tokens);
}

static void open_loader(struct loader *loader, struct tokens *tokens, const char *pattern,
                        int vocab_size) {
    const struct loader_options options = {.seq_len = 4, .vocab_size = vocab_size};
    cr_assert_eq(open_in_folder(tokens, pattern), 0, "%s", error.text);
    cr_assert_eq(loader_open(loader, tokens, &options, &error), 0, "%s", error.text);
}

Test(loader_files, one_batch_may_mix_both_token_widths) {
    struct tokens tokens;
    struct loader loader;
    int32_t inputs[4 * 4], targets[4 * 4];
    write_good("s_0.bin", 65527, 9);
    write_wide("s_1.bin", VOCABULARY_MAX - 9, 9);
    open_loader(&loader, &tokens, "s_*.bin", VOCABULARY_MAX);
    cr_assert_eq(loader.sequence_count, 4);
    cr_assert_eq(fetch(&loader, inputs, targets, 0, 4, &error), 0, "%s", error.text);
    const int32_t firsts[] = {65527, 65531, VOCABULARY_MAX - 9, VOCABULARY_MAX - 5};
    for (int row = 0; row < 4; row++)
        for (int t = 0; t < 4; t++) {
            cr_expect_eq(inputs[row * 4 + t], firsts[row] + t, "row %d", row);
            cr_expect_eq(targets[row * 4 + t], firsts[row] + t + 1, "row %d", row);
        }
    loader_close(&loader);
    tokens_close(&tokens);
}

/* The width of the files does not change the batches. */
Test(loader_files, both_widths_give_the_same_batches) {
    struct tokens narrow, wide;
    struct loader loaders[2];
    int32_t inputs[2][50 * 4], targets[2][50 * 4];
    write_good("narrow.bin", 1000, 201);
    write_wide("wide.bin", 1000, 201);
    open_loader(&loaders[0], &narrow, "narrow.bin", 2000);
    open_loader(&loaders[1], &wide, "wide.bin", 2000);
    for (int i = 0; i < 2; i++) {
        loaders[i].options.shuffle = true;
        cr_assert_eq(fetch(&loaders[i], inputs[i], targets[i], 17, 50, &error), 0);
        loader_close(&loaders[i]);
    }
    cr_expect_arr_eq(inputs[0], inputs[1], sizeof inputs[0]);
    cr_expect_arr_eq(targets[0], targets[1], sizeof targets[0]);
    tokens_close(&narrow);
    tokens_close(&wide);
}

Test(loader_files, a_token_outside_the_vocabulary_is_named) {
    struct tokens tokens;
    struct loader loader;
    int32_t inputs[4], targets[4];
    write_wide("s.bin", 69996, 5);
    open_loader(&loader, &tokens, "s.bin", 70000);
    cr_assert_eq(fetch(&loader, inputs, targets, 0, 1, &error), -1);
    cr_expect_not_null(strstr(error.text, "s.bin: token 70000 at position 4"), "%s", error.text);
    cr_expect_not_null(strstr(error.text, "model.vocab_size to 70001"), "%s", error.text);
    loader_close(&loader);
    tokens_close(&tokens);
}

/* These exceed every possible vocabulary. As int32_t the second one is negative. */
Test(loader_files, a_token_beyond_all_vocabularies_is_damage) {
    const uint32_t beyond[] = {VOCABULARY_MAX, 0xffffffff};
    for (int i = 0; i < 2; i++)
        for (int at = 0; at < 5; at += 4) {
            struct tokens tokens;
            struct loader loader;
            uint32_t few[5] = {1, 2, 3, 4, 5};
            int32_t inputs[4], targets[4];
            char expected[100];
            few[at] = beyond[i];
            write_raw("s.bin", SHARD_MAGIC_32, SHARD_VERSION_32, 5, few, sizeof few);
            open_loader(&loader, &tokens, "s.bin", VOCABULARY_MAX);
            cr_assert_eq(fetch(&loader, inputs, targets, 0, 1, &error), -1);
            snprintf(expected, sizeof expected, "s.bin: token %u at position %d is beyond any",
                     (unsigned)beyond[i], at);
            cr_expect_not_null(strstr(error.text, expected), "%s", error.text);
            cr_expect_not_null(strstr(error.text, "write it again"), "%s", error.text);
            loader_close(&loader);
            tokens_close(&tokens);
        }
}
