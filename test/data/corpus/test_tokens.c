#include "test/data/corpus/tokens_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(tokens, .init = make_folder, .fini = remove_folder);

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
    uint16_t few[4] = {1, 2, 3, 4};
    struct tokens tokens;
    expect_refusal("missing.bin", "no such", "./prepare");
    expect_refusal("missing*.bin", "no token shard matches", "pattern");
    const struct damaged files[] = {
        {"magic.dat", 123, 1, 4, 8, "has no header, and only files named .bin", "./prepare"},
        {"odd.bin", 123, 1, 4, 7, "and its 1031 bytes, an odd number", "./prepare"},
        {"version.bin", 20240520, 2, 4, 8, "version 2", "again"},
        {"short.bin", 20240520, 1, 5, 8,
         "truncated: the header says 5 tokens, the file ends after 4", "again"},
        {"half.bin", 20240520, 1, 4, 7, "truncated", "again"},
        {"long.bin", 20240520, 1, 3, 8, "too long", "again"},
        {"byte.bin", 20240520, 1, 3, 7, "too long", "again"},
        {"negative.bin", 20240520, 1, 0xffffffff, 8, "truncated", "again"},
    };
    expect_damage(files, sizeof files / sizeof *files, few);
    close(open(in_folder("empty.bin"), O_CREAT | O_WRONLY, 0644));
    expect_refusal("empty.bin", "it is empty", "./prepare");
    cr_assert_eq(truncate(in_folder("short.bin"), 1000), 0);
    expect_refusal("short.bin", "truncated: a token shard of 1000 bytes", "again");
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

Test(tokens, raw_files_and_shards_may_be_mixed) {
    const uint16_t few[] = {10, 11, 12};
    write_plain("m_a.bin", few, sizeof few);
    write_good("m_b.bin", 100, 4);
    struct tokens tokens = opened("m_*.bin");
    cr_assert_eq(tokens.count, 7);
    cr_assert(tokens.shards[0].raw);
    cr_assert_not(tokens.shards[1].raw);
    cr_assert_eq(token_at(&tokens.shards[0], 2), 12);
    cr_assert_eq(token_at(&tokens.shards[1], 0), 100);
    tokens_close(&tokens);
}

Test(tokens, files_that_are_not_raw_shards_are_refused) {
    const uint32_t shard[] = {20240520, 1, 2, 0};
    write_plain("odd.bin", "abcde", 5);
    expect_refusal("odd.bin", "and its 5 bytes, an odd number", "./prepare");
    write_plain("byte.bin", "a", 1);
    expect_refusal("byte.bin", "has no header, and its 1 bytes, an odd number", "./prepare");
    write_plain("text.txt", "abcd", 4);
    expect_refusal("text.txt", "only files named .bin", "./prepare");
    write_plain("cut.bin", shard, sizeof shard);
    expect_refusal("cut.bin", "truncated: a token shard of 16 bytes", "again");
    write_plain("cut4.bin", shard, 4);
    expect_refusal("cut4.bin", "truncated: a token shard of 4 bytes", "again");
}

Test(tokens, one_bad_shard_fails_the_set_and_is_named) {
    uint16_t few[4] = {1, 2, 3, 4};
    write_good("s_000000.bin", 1, 10);
    write_raw("s_000001.bin", 20240520, 1, 9, few, 8);
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

static void write_set(const char *name, uint64_t shard_tokens, uint64_t count, uint64_t part) {
    struct shard_writer writer;
    open_writer(&writer, name, VOCABULARY_16_BITS, shard_tokens);
    int32_t tokens[1000];
    for (uint64_t i = 0; i < count; i += part) {
        uint64_t here = count - i < part ? count - i : part;
        for (uint64_t j = 0; j < here; j++) tokens[j] = (uint16_t)(i + j);
        cr_assert_eq(shard_writer_put(&writer, tokens, here, &error), 0, "%s", error.text);
    }
    cr_assert_eq(writer.tokens, count);
    cr_assert_eq(shard_writer_finish(&writer, &error), 0, "%s", error.text);
    cr_assert_eq(writer.shards, (count + shard_tokens - 1) / shard_tokens);
    cr_assert_eq(shard_writer_publish(&writer, &error), 0, "%s", error.text);
    shard_writer_abandon(&writer);
}

Test(tokens, shards_of_all_sizes_round_trip) {
    const struct {
        uint64_t shard_tokens, count, part;
    } cases[] = {{10, 25, 1}, {10, 30, 7},       {10, 30, 30},
                 {1, 3, 2},   {1000, 999, 1000}, {7, 1000, 1000}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        write_set("set", cases[c].shard_tokens, cases[c].count, cases[c].part);
        struct tokens tokens = opened("set_*");
        cr_assert_eq(tokens.count, cases[c].count, "case %zu", c);
        uint64_t position = 0;
        for (int s = 0; s < (int)arrlen(tokens.shards); s++) {
            cr_assert_leq(tokens.shards[s].count, cases[c].shard_tokens);
            for (uint64_t i = 0; i < tokens.shards[s].count; i++)
                cr_assert_eq(token_at(&tokens.shards[s], i), (uint16_t)position++);
        }
        tokens_close(&tokens);
    }
}

Test(tokens, the_bytes_on_the_disk_are_those_of_the_format) {
    write_set("set", 100, 3, 3);
    char *bytes;
    size_t size;
    cr_assert_eq(file_read_all(&bytes, &size, in_folder("set_000000.bin"), 5000, &error), 0);
    cr_assert_eq(size, 1024 + 6);
    /* 20240520 = 0x0134d888 */
    const unsigned char start[] = {0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0};
    const unsigned char end[] = {0, 0, 1, 0, 2, 0};
    cr_assert_arr_eq(bytes, start, sizeof start);
    cr_assert_arr_eq(bytes + 1024, end, sizeof end);
    free(bytes);
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
    write_set("set", 10, 15, 5);
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
    write_set("set", 10, 95, 95);
    write_set("set_1", 10, 10, 10);
    write_good("set_00001.bin", 1, 1);
    write_good("set_000001.bin.txt", 1, 1);
    cr_assert(exists("set_000009.bin"));
    write_set("set", 10, 11, 11);
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
