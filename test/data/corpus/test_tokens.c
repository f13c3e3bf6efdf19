/* Shards of 16 and of 32 bits, alone and together. */
#include "test/data/corpus/tokens_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(tokens, .init = make_folder, .fini = remove_folder);

/* The two formats of shards, of 16 and of 32 bits. */
enum { MAGIC = 20240520, MAGIC_WIDE = 20240801, VERSION_WIDE = 7 };

/* Returns token i of a text, which 16 bits hold unless it is wide. */
static int32_t token_of(bool is_wide, uint64_t i) {
    return is_wide ? (int32_t)(VOCABULARY_MAX - 1 - i * 12345 % VOCABULARY_MAX) : (uint16_t)i;
}

static void write_set(const char *name, bool is_wide, uint64_t shard_tokens, uint64_t count,
                      uint64_t part) {
    struct shard_writer writer;
    static int32_t tokens[10000];
    open_writer(&writer, name, is_wide ? VOCABULARY_MAX : VOCABULARY_16_BITS, shard_tokens);
    for (uint64_t i = 0; i < count; i += part) {
        const uint64_t here = count - i < part ? count - i : part;
        for (uint64_t j = 0; j < here; j++) tokens[j] = token_of(is_wide, i + j);
        SUCCEEDS(shard_writer_put(&writer, tokens, here, &error));
    }
    cr_assert_eq(writer.tokens, count);
    SUCCEEDS(shard_writer_finish(&writer, &error));
    cr_assert_eq(writer.shards, (count + shard_tokens - 1) / shard_tokens);
    SUCCEEDS(shard_writer_publish(&writer, &error));
    shard_writer_abandon(&writer);
}

Test(tokens, opens_one_path) {
    write_good("a.bin", 65000, 1000);
    struct tokens tokens = opened("a.bin");
    cr_assert_eq(arrlen(tokens.shards), 1);
    cr_assert_eq(tokens.count, 1000);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(token_at(&tokens.shards[0], i), (uint16_t)(65000 + i));
    tokens_close(&tokens);
    tokens_close(&tokens);
}

Test(tokens, opens_a_glob_in_the_order_of_the_names) {
    write_good("t_000010.bin", 10, 3);
    write_good("t_000002.bin", 2, 5);
    write_good("t_000000.bin", 0, 0);
    write_good("v_000001.bin", 9, 9);
    struct tokens tokens = opened("t_*.bin");
    cr_assert_eq(arrlen(tokens.shards), 3);
    cr_assert_eq(tokens.count, 8);
    cr_assert_eq(tokens.shards[0].count, 0);
    cr_assert_eq(token_at(&tokens.shards[1], 0), 2);
    cr_assert_eq(token_at(&tokens.shards[2], 0), 10);
    cr_assert_not_null(strstr(tokens.shards[2].name, "t_000010.bin"));
    tokens_close(&tokens);
}

Test(tokens, takes_an_existing_name_as_it_is) {
    write_good("odd[1]*.bin", 7, 2);
    struct tokens tokens = opened("odd[1]*.bin");
    cr_assert_eq(tokens.count, 2);
    tokens_close(&tokens);
}

Test(tokens, refuses_other_files_with_a_remedy) {
    const uint32_t few[4] = {1, 2, 3, 4};
    struct tokens tokens;
    expect_refusal("missing.bin", "no such", "./prepare");
    expect_refusal("missing*.bin", "no token shard matches", "pattern");
    const struct damaged files[] = {
        {"magic.dat", 123, 1, 4, 8, "has no header, and only files named .bin", "./prepare"},
        {"odd.bin", 123, 1, 4, 7, "and its 1031 bytes, an odd number", "./prepare"},
        {"version.bin", MAGIC, 2, 4, 8, "version 2", "again"},
        {"short.bin", MAGIC, 1, 5, 8, "truncated: the header says 5 tokens, the file ends after 4",
         "again"},
        {"half.bin", MAGIC, 1, 4, 7, "truncated", "again"},
        {"long.bin", MAGIC, 1, 3, 8, "too long", "again"},
        {"byte.bin", MAGIC, 1, 3, 7, "too long", "again"},
        {"negative.bin", MAGIC, 1, 0xffffffff, 8, "truncated", "again"},
        {"narrow.bin", MAGIC, VERSION_WIDE, 4, 8, "of 16 bits, version 7; only version 1", "again"},
        {"version32.bin", MAGIC_WIDE, 1, 4, 16, "of 32 bits, version 1; only version 7", "again"},
        {"short32.bin", MAGIC_WIDE, VERSION_WIDE, 5, 16,
         "truncated: the header says 5 tokens, the file ends after 4", "again"},
        {"part32.bin", MAGIC_WIDE, VERSION_WIDE, 4, 15,
         "truncated: the header says 4 tokens, the file ends after 3", "again"},
        {"long32.bin", MAGIC_WIDE, VERSION_WIDE, 3, 16,
         "too long: the header says 3 tokens, followed by 4 bytes", "again"},
        {"bytes32.bin", MAGIC_WIDE, VERSION_WIDE, 3, 14,
         "too long: the header says 3 tokens, followed by 2 bytes", "again"},
        /* Tokens of 16 bits under the header of 32. */
        {"half32.bin", MAGIC_WIDE, VERSION_WIDE, 4, 8,
         "truncated: the header says 4 tokens, the file ends after 2", "again"},
        {"negative32.bin", MAGIC_WIDE, VERSION_WIDE, 0xffffffff, 16, "truncated", "again"},
    };
    expect_damage(files, sizeof files / sizeof *files, few);
    /* The name matters only to files without a header. */
    write_raw("any.name", MAGIC_WIDE, VERSION_WIDE, 4, few, 16);
    tokens = opened("any.name");
    cr_expect_eq(token_at(&tokens.shards[0], 3), 4);
    tokens_close(&tokens);
    close(open(in_folder("empty.bin"), O_CREAT | O_WRONLY, 0644));
    expect_refusal("empty.bin", "it is empty", "./prepare");
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "short32.bin" : "short.bin";
        cr_assert_eq(truncate(in_folder("%s", name), 1000), 0);
        expect_refusal(name, "truncated: a token shard of 1000 bytes", "again");
        cr_assert_eq(truncate(in_folder("%s", name), 4), 0);
        expect_refusal(name, "truncated: a token shard of 4 bytes", "again");
    }
    mkdir(in_folder("folder"), 0755);
    expect_refusal("folder", "directory", "*_train_*.bin");
    mkfifo(in_folder("pipe"), 0644);
    expect_refusal("pipe", "not a regular file", "name the shards");
    cr_expect_eq(tokens_open(&tokens, "", &error), -1);
}

Test(tokens, raw_files_of_nanogpt_are_tokens_to_the_end) {
    const uint16_t few[] = {50256, 1, 0, 65535, 7};
    write_plain("train.bin", few, sizeof few);
    struct tokens tokens = opened("train.bin");
    cr_assert_eq(tokens.count, 5);
    cr_assert(tokens.shards[0].raw);
    for (uint64_t i = 0; i < 5; i++) cr_expect_eq(token_at(&tokens.shards[0], i), few[i]);
    tokens_close(&tokens);
    write_plain("one.bin", few, 2);
    tokens = opened("one.bin");
    cr_assert_eq(tokens.count, 1);
    cr_assert_eq(token_at(&tokens.shards[0], 0), 50256);
    tokens_close(&tokens);
}

Test(tokens, files_that_are_not_raw_shards_are_refused) {
    const uint32_t shard[] = {20240520, 1, 2, 0};
    write_plain("odd.bin", "abcde", 5);
    expect_refusal("odd.bin", "and its 5 bytes, an odd number", "./prepare");
    write_plain("byte.bin", "a", 1);
    expect_refusal("byte.bin", "has no header, and its 1 byte, an odd number", "./prepare");
    write_plain("text.txt", "abcd", 4);
    expect_refusal("text.txt", "only files named .bin", "./prepare");
    write_plain("cut.bin", shard, sizeof shard);
    expect_refusal("cut.bin", "truncated: a token shard of 16 bytes", "again");
}

Test(tokens, one_bad_shard_fails_the_set_and_is_named) {
    uint16_t few[4] = {1, 2, 3, 4};
    write_good("s_000000.bin", 1, 10);
    write_raw("s_000001.bin", MAGIC, 1, 9, few, 8);
    write_good("s_000002.bin", 1, 10);
    struct tokens tokens;
    cr_assert_eq(open_in_folder(&tokens, "s_*.bin"), -1);
    cr_assert_not_null(strstr(error.text, "s_000001.bin: truncated"), "%s", error.text);
}

/* A hole of ten gigabytes takes no space on the disk. */
Test(tokens, counts_beyond_32_bits) {
    const uint64_t count = UINT64_C(5000000000);
    uint32_t header[256] = {20240520, 1, (uint32_t)count, (uint32_t)(count >> 32)};
    uint16_t last = 4321;
    int fd = open(in_folder("huge.bin"), O_CREAT | O_RDWR, 0644);
    cr_assert_eq(pwrite(fd, header, sizeof header, 0), sizeof header);
    if (pwrite(fd, &last, 2, (off_t)(1024 + 2 * (count - 1))) != 2) {
        close(fd);
        cr_skip("the file system has no room for a sparse file of 10 GB");
    }
    close(fd);
    struct tokens tokens = opened("huge.bin");
    cr_assert_eq(tokens.count, count);
    cr_assert_eq(token_at(&tokens.shards[0], 0), 0);
    cr_assert_eq(token_at(&tokens.shards[0], count - 1), 4321);
    tokens_close(&tokens);
}

Test(tokens, can_be_made_in_memory) {
    int32_t *owned = malloc(3 * sizeof *owned);
    owned[2] = 77;
    struct tokens tokens;
    cr_assert_eq(tokens_from_memory(&tokens, owned, 3, "mine", &error), 0);
    cr_assert_eq(tokens.count, 3);
    cr_assert_eq(token_at(&tokens.shards[0], 2), 77);
    cr_assert_str_eq(tokens.shards[0].name, "mine");
    tokens_close(&tokens);
}

Test(tokens, shards_of_all_sizes_round_trip) {
    const struct {
        uint64_t shard_tokens, count, part;
    } cases[] = {{10, 25, 1},       {10, 30, 7},     {10, 30, 30},       {1, 3, 2},
                 {1000, 999, 1000}, {7, 1000, 1000}, {4096, 9000, 5000}, {100000, 10000, 10000}};
    for (size_t c = 0; c < 2 * sizeof cases / sizeof cases[0]; c++) {
        const bool is_wide = c % 2;
        const uint64_t limit = cases[c / 2].shard_tokens, count = cases[c / 2].count;
        write_set("set", is_wide, limit, count, cases[c / 2].part);
        struct tokens tokens = opened("set_*");
        cr_assert_eq(tokens.count, count, "case %zu", c);
        uint64_t position = 0;
        for (size_t s = 0; s < arrlenu(tokens.shards); s++) {
            const struct token_shard *shard = &tokens.shards[s];
            cr_assert(shard->count <= limit && shard->token_bytes == (is_wide ? 4 : 2));
            cr_assert_not(shard->raw);
            for (uint64_t i = 0; i < shard->count; i++)
                cr_assert_eq(token_at(shard, i), token_of(is_wide, position++));
        }
        tokens_close(&tokens);
    }
}

Test(tokens, the_bytes_on_the_disk_are_those_of_llm_c) {
    static const struct {
        int vocab_size;
        int32_t tokens[3];
        unsigned char start[16], end[12];
    } cases[] = {
        /* 20240520 = 0x0134d888, 20240801 = 0x0134d9a1 */
        {256, {0, 1, 2}, {0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 3}, {0, 0, 1, 0, 2, 0}},
        {128256,
         {0, 65536, 128000},
         {0xa1, 0xd9, 0x34, 0x01, 7, 0, 0, 0, 3},
         {0, 0, 0, 0, 0, 0, 1, 0, 0, 0xf4, 1, 0}},
    };
    for (int c = 0; c < 2; c++) {
        const size_t bytes = c ? 12 : 6;
        struct shard_writer writer;
        char *file;
        size_t size;
        open_writer(&writer, "set", cases[c].vocab_size, 100);
        SUCCEEDS(shard_writer_put(&writer, cases[c].tokens, 3, &error));
        publish(&writer);
        SUCCEEDS(file_read_all(&file, &size, in_folder("set_000000.bin"), 5000, &error));
        cr_assert_eq(size, 1024 + bytes);
        cr_assert_arr_eq(file, cases[c].start, 16);
        for (size_t i = 16; i < 1024; i++) cr_assert_eq(file[i], 0);
        cr_assert_arr_eq(file + 1024, cases[c].end, bytes);
        free(file);
    }
}

Test(tokens, nothing_has_its_final_name_before_publish) {
    struct shard_writer writer;
    int32_t tokens[25] = {0};
    uint64_t count;
    open_writer(&writer, "set", 256, 10);
    cr_assert_eq(shard_writer_put(&writer, tokens, 25, &error), 0);
    cr_assert_not(exists("set_000000.bin"));
    cr_assert(exists("set_000000.bin.part"));
    cr_assert_eq(shard_writer_finish(&writer, &error), 0);
    cr_assert_eq(shards_existing(in_folder("set"), &count, &error), 0);
    cr_assert_eq(count, 0);
    cr_assert_eq(shard_writer_publish(&writer, &error), 0);
    cr_assert_eq(shards_existing(in_folder("set"), &count, &error), 0);
    cr_assert_eq(count, 3);
    cr_assert_not(exists("set_000000.bin.part"));
}

Test(tokens, abandon_leaves_the_disk_as_it_was) {
    struct shard_writer writer;
    int32_t tokens[25] = {5};
    write_set("set", false, 10, 15, 5);
    open_writer(&writer, "set", 256, 10);
    cr_assert_eq(shard_writer_put(&writer, tokens, 25, &error), 0);
    shard_writer_abandon(&writer);
    shard_writer_abandon(&writer);
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "set_%06d.bin.part", i);
        cr_assert_not(exists(name));
        snprintf(name, sizeof name, "set_%06d.bin.part.tmp", i);
        cr_assert_not(exists(name));
    }
    struct tokens old = opened("set_*");
    cr_assert_eq(old.count, 15);
    cr_assert_eq(token_at(&old.shards[0], 3), 3);
    tokens_close(&old);
}

Test(tokens, a_smaller_set_removes_the_shards_of_a_larger_one) {
    write_set("set", false, 10, 95, 95);
    write_set("set_1", false, 10, 10, 10);
    write_good("set_00001.bin", 1, 1);
    write_good("set_000001.bin.txt", 1, 1);
    cr_assert(exists("set_000009.bin"));
    write_set("set", false, 10, 11, 11);
    cr_assert(exists("set_000001.bin"));
    cr_assert_not(exists("set_000002.bin"));
    cr_assert_not(exists("set_000009.bin"));
    cr_assert(exists("set_1_000000.bin"), "the shard of another prefix");
    cr_assert(exists("set_00001.bin"), "not the name of a shard");
    cr_assert(exists("set_000001.bin.txt"), "not the name of a shard");
    struct shard_writer writer;
    open_writer(&writer, "set", 256, 10);
    publish(&writer);
    cr_assert_not(exists("set_000000.bin"), "an empty set replaces a set as well");
}

Test(tokens, opening_a_writer_removes_leftovers_of_a_killed_one) {
    write_good("set_000003.bin.part", 1, 1);
    write_good("set_000004.bin.part.tmp", 1, 1);
    write_good("set_000004.bin.partly", 1, 1);
    struct shard_writer writer;
    open_writer(&writer, "set", 256, 10);
    cr_assert_not(exists("set_000003.bin.part"));
    cr_assert_not(exists("set_000004.bin.part.tmp"));
    cr_assert(exists("set_000004.bin.partly"));
    shard_writer_abandon(&writer);
}

Test(tokens, a_full_disk_is_an_error_that_leaves_nothing) {
    struct shard_writer writer;
    static int32_t tokens[1 << 20];
    struct rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = RLIM_INFINITY};
    open_writer(&writer, "set", 256, 1 << 19);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int status = shard_writer_put(&writer, tokens, 1 << 20, &error);
    limit.rlim_cur = RLIM_INFINITY;
    setrlimit(RLIMIT_FSIZE, &limit);
    cr_assert_eq(status, -1);
    cr_assert_not_null(strstr(error.text, "set_000000.bin"), "%s", error.text);
    shard_writer_abandon(&writer);
    cr_assert_not(exists("set_000000.bin.part"));
    cr_assert_not(exists("set_000000.bin.part.tmp"));
}

Test(tokens, a_writer_refuses_an_impossible_prefix) {
    struct shard_writer writer;
    char long_prefix[5000];
    uint64_t count;
    cr_assert_eq(shard_writer_open(&writer, in_folder("%s", ""), 256, 10, &error), -1);
    memset(long_prefix, 'x', sizeof long_prefix - 1);
    long_prefix[sizeof long_prefix - 1] = '\0';
    cr_assert_eq(shard_writer_open(&writer, long_prefix, 256, 10, &error), -1);
    cr_assert_eq(shards_existing(in_folder("no/such/folder"), &count, &error), 0);
    cr_assert_eq(count, 0);
    int32_t token = 1;
    cr_assert_eq(shard_writer_open(&writer, in_folder("no/such/folder"), 256, 10, &error), 0);
    cr_assert_eq(shard_writer_put(&writer, &token, 1, &error), -1);
    cr_assert_not_null(strstr(error.text, "no/such/folder"), "%s", error.text);
    shard_writer_abandon(&writer);
}

Test(tokens, the_vocabulary_decides_the_width) {
    const int vocabularies[] = {1, 256, 50257, 65536, 65537, 128256, VOCABULARY_MAX};
    for (size_t i = 0; i < sizeof vocabularies / sizeof *vocabularies; i++) {
        const bool is_wide = vocabularies[i] > 65536;
        const int32_t last = vocabularies[i] - 1;
        struct shard_writer writer;
        open_writer(&writer, "set", vocabularies[i], 10);
        cr_expect_eq(shard_writer_token_bytes(&writer), is_wide ? 4 : 2);
        SUCCEEDS(shard_writer_put(&writer, &last, 1, &error));
        publish(&writer);
        struct tokens tokens = opened("set_*");
        cr_expect_eq(tokens.shards[0].file.bytes, is_wide ? 1028 : 1026);
        cr_expect_eq(token_at(&tokens.shards[0], 0), last);
        tokens_close(&tokens);
    }
}

Test(tokens, packing_separately_gives_the_same_shards) {
    const int vocabularies[] = {65536, VOCABULARY_MAX};
    int32_t tokens[100], packed[100], read[100];
    for (int v = 0; v < 2; v++) {
        struct shard_writer writer;
        for (int i = 0; i < 100; i++) tokens[i] = token_of(true, (uint64_t)i) % vocabularies[v];
        open_writer(&writer, "set", vocabularies[v], 30);
        shard_writer_pack(&writer, packed, tokens, 100);
        SUCCEEDS(shard_writer_put_packed(&writer, packed, NULL, 100, &error));
        SUCCEEDS(shard_writer_put_packed(&writer, packed, NULL, 0, &error));
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

Test(tokens, sets_may_mix_all_kinds) {
    const uint32_t wide[] = {70000, 1, 128000};
    const uint16_t raw[] = {10, 65535};
    write_plain("m_a.bin", raw, sizeof raw);
    write_raw("m_b.bin", MAGIC_WIDE, VERSION_WIDE, 3, wide, sizeof wide);
    write_good("m_c.bin", 100, 4);
    struct tokens tokens = opened("m_*.bin");
    cr_assert_eq(tokens.count, 9);
    cr_assert(tokens.shards[0].raw && !tokens.shards[1].raw);
    const int32_t expected[3][4] = {{10, 65535}, {70000, 1, 128000}, {100, 101, 102, 103}};
    for (size_t s = 0; s < 3; s++) {
        int32_t read[4] = {0};
        cr_assert_eq(token_shard_read(&tokens.shards[s], read, 0, tokens.shards[s].count, &error),
                     0);
        cr_expect_arr_eq(read, expected[s], sizeof read);
    }
    tokens_close(&tokens);
}

Test(tokens, parts_of_shards_are_read) {
    int32_t read[10];
    write_set("set", true, 100, 100, 100);
    struct tokens tokens = opened("set_*");
    cr_assert_eq(token_shard_read(&tokens.shards[0], read, 90, 10, &error), 0);
    for (uint64_t i = 0; i < 10; i++) cr_expect_eq(read[i], token_of(true, 90 + i));
    cr_assert_eq(token_shard_read(&tokens.shards[0], read, 100, 0, &error), 0);
    cr_expect_eq(read[0], token_of(true, 90));
    tokens_close(&tokens);
}

/* The result is an error; with a memory mapping a signal would end the program. */
Test(tokens, files_that_shrink_in_use_are_named) {
    int32_t read[50000];
    write_set("set", true, 100000, 50000,
              10000); /* pages beyond the new end, and in the last one */
    struct tokens tokens = opened("set_*");
    const struct token_shard *shard = &tokens.shards[0];
    cr_assert_eq(truncate(shard->name, 1024 + 4 * 1000), 0);
    cr_expect_eq(token_shard_read(shard, read, 0, 1000, &error), 0, "%s", error.text);
    for (int i = 0; i < 1000; i++) cr_expect_eq(read[i], token_of(true, (uint64_t)i));
    for (uint64_t first = 999; first < 50000; first += 24499) {
        cr_expect_eq(token_shard_read(shard, read, first, 2, &error), -1);
        cr_expect_not_null(strstr(error.text, shard->name), "%s", error.text);
        cr_expect_not_null(strstr(error.text, "201024 bytes when it was opened, and has 5024 now"),
                           "%s", error.text);
    }
    tokens_close(&tokens);
}

Test(tokens, shards_of_both_widths_replace_each_other) {
    struct shard_writer writer;
    const int32_t few[] = {1, 2, 3};
    write_set("set", true, 10, 35, 35);
    open_writer(&writer, "set", 256, 10);
    SUCCEEDS(shard_writer_put(&writer, few, 3, &error));
    publish(&writer);
    cr_assert_not(exists("set_000001.bin"));
    struct tokens tokens = opened("set_*");
    cr_expect_eq(tokens.count, 3);
    cr_expect_eq(tokens.shards[0].token_bytes, 2);
    tokens_close(&tokens);
}
