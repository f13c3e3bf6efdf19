/* Shards of 32 bits, alone and together with shards of 16 bits. */
#include "test/data/corpus/tokens_fixture.h"

#include <unistd.h>

TestSuite(tokens_wide, .init = make_folder, .fini = remove_folder);

enum { MAGIC = 20240801, VERSION = 7 };

/* Returns token i of a text of large tokens. */
static int32_t large(uint64_t i) {
    return (int32_t)(VOCABULARY_MAX - 1 - i * 12345 % VOCABULARY_MAX);
}

static void write_set(const char *name, uint64_t shard_tokens, uint64_t count, uint64_t part) {
    struct shard_writer writer;
    static int32_t tokens[10000];
    open_writer(&writer, name, VOCABULARY_MAX, shard_tokens);
    for (uint64_t i = 0; i < count; i += part) {
        const uint64_t here = count - i < part ? count - i : part;
        for (uint64_t j = 0; j < here; j++) tokens[j] = large(i + j);
        cr_assert_eq(shard_writer_put(&writer, tokens, here, &error), 0, "%s", error.text);
    }
    cr_assert_eq(writer.tokens, count);
    publish(&writer);
}

Test(tokens_wide, shards_of_all_sizes_round_trip) {
    const struct {
        uint64_t shard_tokens, count, part;
    } cases[] = {{10, 25, 1}, {10, 30, 7}, {1, 3, 2}, {4096, 9000, 5000}, {100000, 10000, 10000}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        write_set("set", cases[c].shard_tokens, cases[c].count, cases[c].part);
        struct tokens tokens = opened("set_*");
        cr_assert_eq(tokens.count, cases[c].count, "case %zu", c);
        uint64_t position = 0;
        for (size_t s = 0; s < arrlenu(tokens.shards); s++) {
            const struct token_shard *shard = &tokens.shards[s];
            cr_assert_leq(shard->count, cases[c].shard_tokens);
            cr_assert(shard->token_bytes == 4 && !shard->raw);
            for (uint64_t i = 0; i < shard->count; i++)
                cr_assert_eq(token_at(shard, i), large(position++));
        }
        tokens_close(&tokens);
    }
}

Test(tokens_wide, the_bytes_on_the_disk_are_those_of_llm_c) {
    const int32_t tokens[] = {0, 65536, 128000};
    struct shard_writer writer;
    char *bytes;
    size_t size;
    open_writer(&writer, "set", 128256, 100);
    cr_assert_eq(shard_writer_put(&writer, tokens, 3, &error), 0, "%s", error.text);
    publish(&writer);
    cr_assert_eq(file_read_all(&bytes, &size, in_folder("set_000000.bin"), 5000, &error), 0);
    cr_assert_eq(size, 1024 + 12);
    /* 20240801 = 0x0134d9a1 */
    const unsigned char start[] = {0xa1, 0xd9, 0x34, 0x01, 7, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0};
    const unsigned char end[] = {0, 0, 0, 0, 0, 0, 1, 0, 0, 0xf4, 1, 0};
    cr_assert_arr_eq(bytes, start, sizeof start);
    for (size_t i = sizeof start; i < 1024; i++) cr_assert_eq(bytes[i], 0);
    cr_assert_arr_eq(bytes + 1024, end, sizeof end);
    free(bytes);
}

Test(tokens_wide, the_vocabulary_decides_the_width) {
    const int vocabularies[] = {1, 256, 50257, 65536, 65537, 128256, VOCABULARY_MAX};
    for (size_t i = 0; i < sizeof vocabularies / sizeof *vocabularies; i++) {
        const bool is_wide = vocabularies[i] > 65536;
        const int32_t last = vocabularies[i] - 1;
        struct shard_writer writer;
        open_writer(&writer, "set", vocabularies[i], 10);
        cr_expect_eq(shard_writer_token_bytes(&writer), is_wide ? 4 : 2);
        cr_assert_eq(shard_writer_put(&writer, &last, 1, &error), 0, "%s", error.text);
        publish(&writer);
        struct tokens tokens = opened("set_*");
        cr_expect_eq(tokens.shards[0].file.bytes, is_wide ? 1028 : 1026);
        cr_expect_eq(token_at(&tokens.shards[0], 0), last);
        tokens_close(&tokens);
    }
}

Test(tokens_wide, packing_separately_gives_the_same_shards) {
    const int vocabularies[] = {65536, VOCABULARY_MAX};
    int32_t tokens[100], packed[100], read[100];
    for (int v = 0; v < 2; v++) {
        struct shard_writer writer;
        for (int i = 0; i < 100; i++) tokens[i] = large((uint64_t)i) % vocabularies[v];
        open_writer(&writer, "set", vocabularies[v], 30);
        shard_writer_pack(&writer, packed, tokens, 100);
        cr_assert_eq(shard_writer_put_packed(&writer, packed, NULL, 100, &error), 0, "%s",
                     error.text);
        cr_assert_eq(shard_writer_put_packed(&writer, packed, NULL, 0, &error), 0, "%s",
                     error.text);
        publish(&writer);
        struct tokens set = opened("set_*");
        cr_assert_eq(arrlen(set.shards), 4);
        for (uint64_t s = 0; s < 4; s++)
            cr_assert_eq(
                token_shard_read(&set.shards[s], read + 30 * s, 0, set.shards[s].count, &error), 0);
        cr_assert_arr_eq(read, tokens, sizeof tokens);
        tokens_close(&set);
    }
}

Test(tokens_wide, sets_may_mix_all_kinds) {
    const uint32_t wide[] = {70000, 1, 128000};
    const uint16_t raw[] = {10, 65535};
    write_plain("m_a.bin", raw, sizeof raw);
    write_raw("m_b.bin", MAGIC, VERSION, 3, wide, sizeof wide);
    write_good("m_c.bin", 100, 4);
    struct tokens tokens = opened("m_*.bin");
    cr_assert_eq(tokens.count, 9);
    const int32_t expected[3][4] = {{10, 65535}, {70000, 1, 128000}, {100, 101, 102, 103}};
    for (size_t s = 0; s < 3; s++) {
        int32_t read[4] = {0};
        cr_assert_eq(token_shard_read(&tokens.shards[s], read, 0, tokens.shards[s].count, &error),
                     0);
        cr_expect_arr_eq(read, expected[s], sizeof read);
    }
    tokens_close(&tokens);
}

Test(tokens_wide, parts_of_shards_are_read) {
    int32_t read[10];
    write_set("set", 100, 100, 100);
    struct tokens tokens = opened("set_*");
    cr_assert_eq(token_shard_read(&tokens.shards[0], read, 90, 10, &error), 0);
    for (uint64_t i = 0; i < 10; i++) cr_expect_eq(read[i], large(90 + i));
    cr_assert_eq(token_shard_read(&tokens.shards[0], read, 100, 0, &error), 0);
    cr_expect_eq(read[0], large(90));
    tokens_close(&tokens);
}

/* The result is an error; with a memory mapping a signal would end the program. */
Test(tokens_wide, files_that_shrink_in_use_are_named) {
    int32_t read[50000];
    write_set("set", 100000, 50000, 10000); /* pages beyond the new end, and in the last one */
    struct tokens tokens = opened("set_*");
    const struct token_shard *shard = &tokens.shards[0];
    cr_assert_eq(truncate(shard->name, 1024 + 4 * 1000), 0);
    cr_expect_eq(token_shard_read(shard, read, 0, 1000, &error), 0, "%s", error.text);
    for (int i = 0; i < 1000; i++) cr_expect_eq(read[i], large((uint64_t)i));
    for (uint64_t first = 999; first < 50000; first += 24499) {
        cr_expect_eq(token_shard_read(shard, read, first, 2, &error), -1);
        cr_expect_not_null(strstr(error.text, shard->name), "%s", error.text);
        cr_expect_not_null(strstr(error.text, "201024 bytes when it was opened, and has 5024 now"),
                           "%s", error.text);
    }
    tokens_close(&tokens);
}

Test(tokens_wide, damaged_files_are_refused) {
    const uint32_t few[4] = {1, 2, 3, 4}, magic = MAGIC;
    const struct damaged files[] = {
        {"version.bin", MAGIC, 1, 4, 16, "of 32 bits, version 1; only version 7", "again"},
        {"narrow.bin", 20240520, VERSION, 4, 8, "of 16 bits, version 7; only version 1", "again"},
        {"short.bin", MAGIC, VERSION, 5, 16,
         "truncated: the header says 5 tokens, the file ends after 4", "again"},
        {"part.bin", MAGIC, VERSION, 4, 15,
         "truncated: the header says 4 tokens, the file ends after 3", "again"},
        {"long.bin", MAGIC, VERSION, 3, 16, "too long: the header says 3 tokens, and 4", "again"},
        {"bytes.bin", MAGIC, VERSION, 3, 14, "too long: the header says 3 tokens, and 2", "again"},
        /* Tokens of 16 bits under the header of 32. */
        {"half.bin", MAGIC, VERSION, 4, 8,
         "truncated: the header says 4 tokens, the file ends after 2", "again"},
        {"negative.bin", MAGIC, VERSION, 0xffffffff, 16, "truncated", "again"},
    };
    expect_damage(files, sizeof files / sizeof *files, few);
    write_plain("magic.bin", &magic, sizeof magic);
    expect_refusal("magic.bin", "truncated: a token shard of 4 bytes", "again");
    cr_assert_eq(truncate(in_folder("short.bin"), 1000), 0);
    expect_refusal("short.bin", "truncated: a token shard of 1000 bytes", "again");
    /* The name matters only to files without a header. */
    write_raw("any.name", MAGIC, VERSION, 4, few, 16);
    struct tokens tokens = opened("any.name");
    cr_expect_eq(token_at(&tokens.shards[0], 3), 4);
    tokens_close(&tokens);
}

Test(tokens_wide, shards_of_both_widths_replace_each_other) {
    struct shard_writer writer;
    const int32_t few[] = {1, 2, 3};
    write_set("set", 10, 35, 35);
    open_writer(&writer, "set", 256, 10);
    cr_assert_eq(shard_writer_put(&writer, few, 3, &error), 0, "%s", error.text);
    publish(&writer);
    cr_assert_not(exists("set_000001.bin"));
    struct tokens tokens = opened("set_*");
    cr_expect_eq(tokens.count, 3);
    cr_expect_eq(tokens.shards[0].token_bytes, 2);
    tokens_close(&tokens);
}
