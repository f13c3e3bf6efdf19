/* Runs the program itself: bytes, the split, and what failures leave behind. */
#include "test/data/corpus/prepare_fixture.h"

#include "test/caught.h"

TestSuite(prepare, .init = make_folder, .fini = remove_folder);

static void expect_usage_error(const char *arguments, const char *message) {
    cr_expect_eq(run(arguments), 2, "%s", arguments);
    cr_expect_not_null(strstr(error_text, message), "%s: %s", arguments, error_text);
    cr_expect_str_empty(out_text);
}

Test(prepare, keeps_the_end_of_a_short_text_for_validation) {
    write_text("a.txt", "abcdefghijklmnopqrst");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0.25 --out set a.txt"), 0, "%s", error_text);
    expect_tokens("set_train_*.bin", "abcdefghijklmno");
    expect_tokens("set_val_*.bin", "pqrst");
    const char *summary =
        "15 training tokens in 1 shard: set_train_*.bin; 5 validation tokens in 1 "
        "shard: set_val_*.bin; vocabulary 256\n"
        "read 20 bytes, 1 document, in ";
    cr_assert_eq(strncmp(out_text, summary, strlen(summary)), 0, "%s", out_text);
    cr_assert_str_empty(error_text);
    cr_expect_not_null(strstr(out_text, "next: ./train --config text.json --set name=mine \\\n"
                                        "    --set 'data.train=set_train_*.bin' \\\n"
                                        "    --set 'data.val=set_val_*.bin' \\\n"
                                        "    --set data.seq_len=4\n"),
                       "%s", out_text);
}

Test(prepare, counts_of_one_are_singular) {
    write_text("a.txt", "abcd");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0.25 --out set a.txt"), 0, "%s", error_text);
    cr_expect_not_null(strstr(out_text, "3 training tokens in 1 shard: set_train_*.bin; 1 "
                                        "validation token in 1 shard: set_val_*.bin;"),
                       "%s", out_text);
    cr_assert_eq(run("--tokenizer bytes --out set a.txt"), 1);
    cr_expect_not_null(strstr(error_text, "2 shards of set exist already"), "%s", error_text);
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --out one a.txt"), 0, "%s", error_text);
    cr_assert_eq(run("--tokenizer bytes --out one a.txt"), 1);
    cr_expect_not_null(strstr(error_text, "1 shard of one exists already"), "%s", error_text);
}

/* A part that is a whole sequence of text.json needs no other length. */
Test(prepare, the_next_command_has_sequences_that_fit) {
    char text[200];
    memset(text, 'x', sizeof text);
    for (int tokens = 128; tokens <= 129; tokens++) {
        text[tokens] = '\0';
        write_text("a.txt", text);
        text[tokens] = 'x';
        cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --force --out set a.txt"), 0);
        cr_expect_eq(strstr(out_text, "--set data.seq_len=64\n") != NULL, tokens == 128, "%s",
                     out_text);
    }
}

/* The lengths that ./prepare assumes are those of the configs. */
Test(prepare, the_next_command_knows_its_configs) {
    const char *const files[] = {"configs/text.json", "configs/finetune-lora.json"};
    const char *const lines[] = {"\"seq_len\": 128\n", "\"seq_len\": 1024\n"};
    for (int i = 0; i < 2; i++) {
        char text[4096];
        FILE *file = fopen(files[i], "r");
        cr_assert_not_null(file, "%s", files[i]);
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
        cr_expect_not_null(strstr(text, lines[i]), "%s", files[i]);
    }
}

Test(prepare, the_next_command_is_quoted_and_has_no_missing_shards) {
    write_text("a.txt", "abc");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --out it's a.txt"), 0, "%s", error_text);
    cr_expect_not_null(
        strstr(out_text,
               " --set 'data.train=it'\\''s_train_*.bin'"
               " --set data.val= --set eval.every=0 \\\n    --set checkpoint.keep_best=false \\\n"
               "    --set data.seq_len=2\n"),
        "%s", out_text);
}

Test(prepare, notes_binary_files) {
    write_text("a.txt", "abc");
    write_bytes("b.bin", "a\0c", 3);
    write_bytes("c.bin", "\0", 1);
    cr_assert_eq(run("--tokenizer bytes --out one b.bin a.txt"), 0, "%s", error_text);
    cr_expect_not_null(strstr(error_text, "note: 1 file is not UTF-8 text"), "%s", error_text);
    cr_expect_not_null(strstr(error_text, ": b.bin\n"), "%s", error_text);
    cr_assert_eq(run("--tokenizer bytes --out two a.txt b.bin c.bin"), 0, "%s", error_text);
    cr_expect_not_null(strstr(error_text, "note: 2 files are not UTF-8 text"), "%s", error_text);
    cr_expect_not_null(strstr(error_text, ": b.bin ...\n"), "%s", error_text);
    write_bytes("latin1.txt", "caf\xe9 au lait", 12);
    cr_assert_eq(run("--tokenizer bytes --out three latin1.txt"), 0, "%s", error_text);
    cr_expect_not_null(strstr(error_text, "1 file is not UTF-8 text"), "%s", error_text);
    /* The end of the file, or of the first read, may split a character. */
    write_bytes("cut.txt", "caf\xc3", 4);
    cr_assert_eq(run("--tokenizer bytes --out four cut.txt"), 0, "%s", error_text);
    cr_expect_null(strstr(error_text, "UTF-8"), "%s", error_text);
}

Test(prepare, joins_files_and_the_standard_input) {
    int ends[2];
    write_text("a.txt", "one ");
    write_text("b.txt", "three");
    write_text("empty.txt", "");
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(write(ends[1], "two ", 4), 4);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    close(ends[1]);
    pid_t child = start("--tokenizer=bytes --val-fraction=0 --out=set a.txt - empty.txt b.txt",
                        ends[0], RLIM_INFINITY);
    close(ends[0]);
    cr_assert_eq(finish(child), 0, "%s", error_text);
    expect_tokens("set_train_000000.bin", "one two three");
    cr_assert_not(exists("set_val_000000.bin"));
    cr_assert_not_null(strstr(out_text, "no validation tokens"), "%s", out_text);
}

Test(prepare, cuts_shards_and_makes_folders) {
    write_text("a.txt", "0123456789abcdefghijklmnopqrstuvwxyz");
    cr_assert_eq(run("--tokenizer bytes --shard-tokens 10 --val-fraction 0.3 --out x/y/s a.txt"), 0,
                 "%s", error_text);
    expect_tokens("x/y/s_train_*.bin", "0123456789abcdefghijklmno");
    expect_tokens("x/y/s_train_000002.bin", "klmno");
    expect_tokens("x/y/s_val_*.bin", "pqrstuvwxyz");
    cr_assert_not_null(strstr(out_text, "in 3 shards"), "%s", out_text);
}

Test(prepare, all_256_bytes_survive) {
    unsigned char bytes[256];
    for (int i = 0; i < 256; i++) bytes[i] = (unsigned char)i;
    write_bytes("a.bin", bytes, 256);
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --out set a.bin"), 0, "%s", error_text);
    char *text = tokens_text("set_train_*.bin");
    cr_assert_eq(arrlen(text), 257);
    cr_assert_arr_eq(text, bytes, 256);
    arrfree(text);
}

/* Two blocks: the end of each becomes validation text, in the order of the text. */
Test(prepare, a_long_text_is_split_block_by_block) {
    const size_t size = BLOCK_BYTES + 1000, val_first = BLOCK_BYTES / 4, val_second = 250;
    uint8_t *bytes = malloc(size);
    for (size_t i = 0; i < size; i++) bytes[i] = (uint8_t)(i % 251);
    write_bytes("a.bin", bytes, size);
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0.25 --out set a.bin"), 0, "%s", error_text);
    struct tokens train, val;
    cr_assert_eq(tokens_open(&train, in_folder("set_train_*"), &error), 0, "%s", error.text);
    cr_assert_eq(tokens_open(&val, in_folder("set_val_*"), &error), 0, "%s", error.text);
    cr_assert_eq(val.count, val_first + val_second);
    cr_assert_eq(train.count + val.count, size);
    int32_t *tokens = malloc(size * sizeof *tokens);
    const int32_t *t = tokens, *v = tokens + train.count;
    cr_assert_eq(token_shard_read(&train.shards[0], tokens, 0, train.count, &error), 0);
    cr_assert_eq(token_shard_read(&val.shards[0], tokens + train.count, 0, val.count, &error), 0);
    size_t wrong = 0;
    for (size_t i = 0; i < size; i++) {
        size_t block = i / BLOCK_BYTES * BLOCK_BYTES;
        size_t length = size - block < BLOCK_BYTES ? size - block : BLOCK_BYTES;
        int is_val = i - block >= length - length / 4;
        wrong += (is_val ? *v++ : *t++) != bytes[i];
    }
    cr_assert_eq(wrong, 0);
    tokens_close(&train);
    tokens_close(&val);
    free(tokens);
    free(bytes);
}

Test(prepare, a_tiny_text_has_at_least_a_training_part) {
    write_text("a.txt", "x");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0.9 --out set a.txt"), 1);
    cr_assert_not_null(strstr(error_text, "too little text to train on: a.txt"), "%s", error_text);
    cr_assert_not(exists("set_train_000000.bin"));
    write_text("a.txt", "xyz");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0.3 --out set a.txt"), 0, "%s", error_text);
    expect_tokens("set_train_*.bin", "xy");
    cr_assert_not_null(strstr(error_text, "too short for a validation part"), "%s", error_text);
    cr_assert_not_null(strstr(out_text, "--set data.val= --set eval.every=0"), "%s", out_text);
}

Test(prepare, replaces_only_when_forced_and_then_everything) {
    write_text("long.txt", "0123456789abcdefghijklmnopqrstuvwxyz");
    write_text("short.txt", "SHORT");
    cr_assert_eq(run("--tokenizer bytes --shard-tokens 5 --val-fraction .5 --out set long.txt"), 0);
    cr_assert_eq(run("--tokenizer bytes --out set short.txt"), 1);
    cr_assert_not_null(strstr(error_text, "--force"), "%s", error_text);
    expect_tokens("set_val_*.bin", "ijklmnopqrstuvwxyz");
    cr_assert_eq(run("--tokenizer bytes --force --val-fraction 0 --out set short.txt"), 0, "%s",
                 error_text);
    expect_tokens("set_train_*.bin", "SHORT");
    cr_assert_not(exists("set_val_000000.bin"), "a stale validation shard");
    cr_assert_eq(run("--tokenizer bytes --out se short.txt"), 0, "another prefix is free");
}

Test(prepare, a_failure_leaves_the_old_shards_and_nothing_new) {
    write_text("a.txt", "old text");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --out set a.txt"), 0);
    cr_assert_eq(run("--tokenizer bytes --force --out set a.txt missing.txt"), 1);
    cr_assert_not_null(strstr(error_text, "missing.txt"), "%s", error_text);
    mkdir(in_folder("empty"), 0755);
    cr_assert_eq(run("--tokenizer bytes --force --out set a.txt empty"), 1);
    cr_assert_not_null(strstr(error_text, "no text in the folder empty"), "%s", error_text);
    cr_assert_eq(run("--tokenizer bytes --force --out set /dev/null"), 1);
    cr_assert_not_null(strstr(error_text, "no text"), "%s", error_text);
    cr_assert_eq(run("--tokenizer bytes --out a.txt/set a.txt"), 1);
    expect_tokens("set_train_*.bin", "old text");
    cr_assert_not(exists("set_train_000000.bin.part"));
}

Test(prepare, a_full_disk_leaves_the_old_shards_and_nothing_new) {
    enum { SIZE = 100000 };
    static uint8_t bytes[SIZE];
    write_text("a.txt", "old text");
    write_bytes("b.bin", bytes, SIZE);
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --out set a.txt"), 0);
    pid_t child =
        start("--tokenizer bytes --force --shard-tokens 30000 --out set b.bin", -1, 50000);
    cr_assert_eq(finish(child), 1);
    cr_assert_not_null(strstr(error_text, "set_train_000000.bin"), "%s", error_text);
    expect_tokens("set_train_*.bin", "old text");
    cr_assert_not(exists("set_train_000000.bin.part"));
    cr_assert_not(exists("set_train_000000.bin.part.tmp"));
}

static void wait_until_exists(const char *name) {
    struct timespec pause = {.tv_nsec = 2000000};
    for (int i = 0; i < 15000 && !exists(name); i++) nanosleep(&pause, NULL);
    cr_assert(exists(name), "%s", name);
}

/* The signal comes while the program waits for more input, after complete shards. */
static void interrupt_with(int number) {
    int ends[2];
    static uint8_t bytes[BLOCK_BYTES + 10];
    cr_assert_eq(pipe(ends), 0);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    pid_t child = start("--tokenizer bytes --force --shard-tokens 9000000 --out set -", ends[0],
                        RLIM_INFINITY);
    close(ends[0]);
    for (size_t done = 0; done < sizeof bytes;)
        done += (size_t)write(ends[1], bytes + done, sizeof bytes - done);
    wait_until_exists("set_train_000001.bin.part.tmp");
    kill(child, number);
    cr_assert_eq(finish(child), 128 + number, "%s", error_text);
    close(ends[1]);
    cr_assert_not_null(strstr(error_text, "interrupted"), "%s", error_text);
    cr_assert_not(exists("set_train_000000.bin.part"));
    cr_assert_not(exists("set_train_000001.bin.part.tmp"));
    cr_assert_not(exists("set_val_000000.bin.part.tmp"));
}

Test(prepare, an_interrupt_leaves_the_old_shards_and_nothing_new) {
    write_text("a.txt", "old text");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --out set a.txt"), 0);
    interrupt_with(SIGINT);
    interrupt_with(SIGTERM);
    expect_tokens("set_*.bin", "old text");
}

Test(prepare, an_interrupt_ends_waiting_for_a_named_pipe) {
    cr_assert_eq(mkfifo(in_folder("pipe"), 0644), 0);
    pid_t child = start("--tokenizer bytes --out set pipe", -1, RLIM_INFINITY);
    wait_until_caught(child, SIGTERM, true);
    kill(child, SIGTERM);
    cr_assert_eq(finish(child), 143, "%s", error_text);
}

/* The first process waits for its input, so the second always meets it. */
Test(prepare, a_second_process_is_refused) {
    cr_assert_eq(mkfifo(in_folder("slow"), 0600), 0);
    write_text("text", "some text");
    const pid_t child = start("--tokenizer bytes --out p slow", -1, RLIM_INFINITY);
    const int input = open(in_folder("slow"), O_WRONLY);
    wait_until_exists("p.lock");
    const pid_t second = start("--tokenizer bytes --out p text", -1, RLIM_INFINITY);
    cr_expect_eq(finish(second), 1);
    cr_expect_not_null(strstr(error_text, "another process is writing shards"), "%s", error_text);
    cr_assert_eq(write(input, "the first", 9), 9);
    close(input);
    cr_expect_eq(finish(child), 0, "%s", error_text);
    cr_expect_not(exists("p.lock"));
    cr_expect_eq(run("--tokenizer bytes --out p text --force"), 0, "%s", error_text);
}

Test(prepare, prints_help) {
    cr_assert_eq(run("-h"), 0);
    cr_assert_eq(run("--help"), 0);
    const char *options[] = {"--tokenizer bytes", "--tokenizer KIND", "--out",    "--val-fraction",
                             "--shard-tokens",    "--force",          "--field",  "--jsonl",
                             "--skip-bad-rows",   "<|endoftext|>",    "gzip -dc", "16 MiB",
                             ".ndjson",           "--version"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        cr_expect_not_null(strstr(out_text, options[i]), "%s", options[i]);
    for (const char *line = out_text; *line; line += strcspn(line, "\n") + 1)
        cr_expect_leq(strcspn(line, "\n"), 80u, "%.*s", (int)strcspn(line, "\n"), line);
    int lines = 0;
    for (const char *at = out_text; *at; at++) lines += *at == '\n';
    cr_expect_leq(lines, 45, "%d lines", lines);
    cr_assert_str_empty(error_text);
}

Test(prepare, usage_errors_say_what_is_allowed) {
    write_text("a.txt", "some text");
    expect_usage_error("", "--tokenizer");
    expect_usage_error("--tokenizer bytes a.txt", "--out");
    expect_usage_error("--tokenizer bytes --out set", "no text named");
    expect_usage_error("--out set a.txt", "--tokenizer");
    expect_usage_error("--tokenizer words --out set a.txt", "allowed: bytes");
    expect_usage_error("--tokenizer gpt2 --out set a.txt", "add it: --tokenizer gpt2:DIR");
    expect_usage_error("--tokenizer gpt2: --out set a.txt", "add it: --tokenizer gpt2:DIR");
    expect_usage_error("--tokenizer files: --out set a.txt", "add it: --tokenizer files:DIR");
    expect_usage_error("--tokenizer file:x --out set a.txt", "files:DIR");
    expect_usage_error("--tokenizer bytes --val-fraction 1 --out set a.txt", "less than 1");
    expect_usage_error("--tokenizer bytes --val-fraction -0.1 --out set a.txt", "less than 1");
    expect_usage_error("--tokenizer bytes --val-fraction nan --out set a.txt", "less than 1");
    expect_usage_error("--tokenizer bytes --val-fraction 0.1x --out set a.txt", "less than 1");
    expect_usage_error("--tokenizer bytes --shard-tokens 0 --out set a.txt", "from 1");
    expect_usage_error("--tokenizer bytes --shard-tokens 1e6 --out set a.txt", "from 1");
    expect_usage_error("--tokenizer bytes --shard-tokens 99999999999 --out set a.txt", "from 1");
    expect_usage_error("--tokenizer bytes --out set/ a.txt", "not the beginning");
    expect_usage_error("--tokenizer bytes --out set - -", "named 2 times");
    expect_usage_error("--tokenizer bytes --colour --out set a.txt", "unknown option --colour");
    expect_usage_error("--tokeniser bytes --out set a.txt",
                       "unknown option --tokeniser; did you mean --tokenizer?\n");
    expect_usage_error("-x --tokenizer bytes --out set a.txt", "unknown option -x");
    expect_usage_error("-yx --tokenizer bytes --out set a.txt", "unknown option -yx");
    expect_usage_error("--tokenizer bytes --force=1 --out set a.txt", "--force takes no value");
    expect_usage_error("--tok bytes --out set a.txt", "unknown option --tok");
    expect_usage_error("--tokenizer bytes a.txt --out", "--out needs a value");
    expect_usage_error("--tokenizer --out x a.txt", "--tokenizer needs a value");
    cr_expect_eq(run("--tokenizer bytes --out set -- --force"), 1);
    cr_expect_not_null(strstr(error_text, "cannot read --force"), "%s", error_text);
    cr_assert_not(exists("set_train_000000.bin"));
}
