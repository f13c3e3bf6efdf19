#include "data/util/files.h"
#include "data/corpus/tokenizer_record.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/scratch.h"

TestSuite(tokenizer_record, .init = make_folder, .fini = remove_folder);

static const char SMALL[] = "test/golden/tokenizer/small";

static void open_small(struct tokenizer *tokenizer) {
    cr_assert_eq(tokenizer_open(tokenizer, TOKENIZER_GPT2, SMALL, &error), 0, "%s", error.text);
}

static void open_bytes(struct tokenizer *tokenizer) {
    cr_assert_eq(tokenizer_open(tokenizer, TOKENIZER_BYTES, NULL, &error), 0, "%s", error.text);
}

static int write_record(const char *prefix, const struct tokenizer *tokenizer,
                        const char *directory) {
    return tokenizer_record_stage(prefix, tokenizer, directory, &error) ||
                   tokenizer_record_publish(prefix, &error)
               ? -1
               : 0;
}

static void write_small(const char *name) {
    struct tokenizer tokenizer;
    open_small(&tokenizer);
    cr_assert_eq(write_record(in_folder("%s", name), &tokenizer, SMALL), 0, "%s", error.text);
    tokenizer_close(&tokenizer);
}

static int read_record(struct tokenizer_record *record, const char *shard) {
    error.text[0] = '\0';
    return tokenizer_record_of_shard(record, in_folder("%s", shard), &error);
}

static void write_text(const char *name, const char *text) {
    cr_assert_eq(file_write_whole(in_folder("%s", name), text, strlen(text), NULL, &error), 0);
}

Test(tokenizer_record, records_round_trip) {
    struct tokenizer tokenizer;
    struct tokenizer_record record;
    char absolute[FILE_PATH_MAX];
    write_small("set");
    cr_assert_not(file_exists(in_folder("set_tokenizer.json.part")));
    cr_assert_eq(read_record(&record, "set_train_000000.bin"), 0, "%s", error.text);
    cr_assert_eq(record.kind, TOKENIZER_GPT2);
    cr_assert_eq(record.vocab_size, 1200);
    cr_assert_str_eq(record.directory, realpath(SMALL, absolute));
    cr_assert_str_eq(record.path, in_folder("set_tokenizer.json"));
    cr_assert_eq(record.file_count, 2);
    open_small(&tokenizer);
    for (int i = 0; i < 2; i++) {
        cr_expect_str_eq(record.files[i].name, tokenizer.files[i].name);
        cr_expect_eq(record.files[i].bytes, tokenizer.files[i].size);
        cr_expect_str_eq(record.files[i].sha256, tokenizer.files[i].sha256);
    }
    cr_assert_eq(tokenizer_record_check(&record, &tokenizer, &error), 0, "%s", error.text);
    tokenizer_close(&tokenizer);
}

/* Records of older versions call all tokenizers from files gpt2. */
Test(tokenizer_record, each_kind_has_its_own_name) {
    struct tokenizer tokenizer;
    struct tokenizer_record record;
    open_small(&tokenizer);
    tokenizer.kind = TOKENIZER_FILES;
    cr_assert_eq(write_record(in_folder("set"), &tokenizer, SMALL), 0, "%s", error.text);
    cr_assert_eq(read_record(&record, "set_train_000000.bin"), 0, "%s", error.text);
    cr_expect_eq(record.kind, TOKENIZER_FILES);
    cr_expect_eq(tokenizer_record_check(&record, &tokenizer, &error), 0, "%s", error.text);
    record.kind = TOKENIZER_GPT2;
    cr_expect_eq(tokenizer_record_check(&record, &tokenizer, &error), 0, "%s", error.text);
    record.kind = TOKENIZER_BYTES;
    cr_expect_eq(tokenizer_record_check(&record, &tokenizer, &error), -1);
    cr_expect_not_null(strstr(error.text, "tokenizer bytes, not files"), "%s", error.text);
    tokenizer_close(&tokenizer);
}

/* Existing records must stay valid, and they contain this hash. */
Test(tokenizer_record, tokenizer_hashes_are_stable) {
    struct tokenizer tokenizer;
    open_small(&tokenizer);
    cr_expect_str_eq(tokenizer.sha256,
                     "0c4a4fa699684aaea7f98891386a576ee4cee508269869b1f9b0531efd783e4a");
    tokenizer_close(&tokenizer);
}

Test(tokenizer_record, bytes_have_no_folder_and_no_files) {
    struct tokenizer tokenizer;
    struct tokenizer_record record;
    char *text;
    size_t size;
    open_bytes(&tokenizer);
    cr_assert_eq(write_record(in_folder("set"), &tokenizer, NULL), 0, "%s", error.text);
    cr_assert_eq(file_read_all(&text, &size, in_folder("set_tokenizer.json"), 1000, &error), 0);
    cr_assert_str_eq(text, "{\n  \"format\": 1,\n  \"kind\": \"bytes\",\n  \"vocab_size\": 256,\n"
                           "  \"sha256\": null,\n"
                           "  \"directory\": null,\n  \"files\": {}\n}\n");
    free(text);
    cr_assert_eq(read_record(&record, "set_val_000012.bin"), 0, "%s", error.text);
    cr_assert_eq(record.kind, TOKENIZER_BYTES);
    cr_assert_eq(record.vocab_size, 256);
    cr_assert_str_empty(record.directory);
    cr_assert_eq(record.file_count, 0);
    cr_assert_eq(tokenizer_record_check(&record, &tokenizer, &error), 0, "%s", error.text);
    tokenizer_close(&tokenizer);
}

Test(tokenizer_record, is_found_by_the_name_of_a_shard) {
    struct tokenizer_record record;
    mkdir(in_folder("d"), 0755);
    write_small("d/a_train_b_val");
    cr_expect_eq(read_record(&record, "d/a_train_b_val_train_000000.bin"), 0, "%s", error.text);
    cr_expect_eq(read_record(&record, "d/a_train_b_val_val_1000000.bin"), 0, "%s", error.text);
    cr_expect_eq(read_record(&record, "d/a_train_b_val_test_000000.bin"), 1);
    cr_expect_eq(read_record(&record, "d/a_train_b_val_train_00000.bin"), 1);
    cr_expect_eq(read_record(&record, "d/a_train_b_val_train_000000.bin.part"), 1);
    cr_expect_eq(read_record(&record, "d/a_train_b_valtrain_000000.bin"), 1);
    cr_expect_eq(read_record(&record, "d/a_train_b_val_train_.bin"), 1);
    cr_expect_eq(read_record(&record, "d/a_train_000000.bin"), 1, "another prefix");
    cr_expect_eq(read_record(&record, "d/_train_000000.bin"), 1);
    cr_expect_eq(read_record(&record, "d/train.bin"), 1);
    cr_expect_eq(read_record(&record, "d/000000.bin"), 1);
    cr_expect_eq(read_record(&record, ".bin"), 1);
    cr_expect_eq(read_record(&record, ""), 1);
    cr_assert_eq(chdir(in_folder("d")), 0);
    cr_expect_eq(tokenizer_record_of_shard(&record, "a_train_b_val_val_000000.bin", &error), 0,
                 "%s", error.text);
    cr_expect_eq(tokenizer_record_of_shard(&record, "_train_000000.bin", &error), RESULT_NONE);
}

Test(tokenizer_record, folders_of_any_name_survive) {
    struct tokenizer tokenizer;
    struct tokenizer_record record;
    const char *names[] = {"with \"quotes\" and \\", "a\n\tb\x01", "\xc3\xa9\xe4\xb8\xad"};
    open_small(&tokenizer);
    for (int i = 0; i < 3; i++) {
        char absolute[FILE_PATH_MAX];
        mkdir(in_folder("%s", names[i]), 0755);
        cr_assert_eq(write_record(in_folder("set"), &tokenizer, in_folder("%s", names[i])), 0, "%s",
                     error.text);
        cr_assert_eq(read_record(&record, "set_train_000000.bin"), 0, "%s", error.text);
        cr_assert_str_eq(record.directory, realpath(in_folder("%s", names[i]), absolute));
    }
    cr_assert_eq(write_record(in_folder("set"), &tokenizer, in_folder("gone")), -1);
    cr_assert_not_null(strstr(error.text, "gone"), "%s", error.text);
    cr_assert_eq(write_record(in_folder("no/set"), &tokenizer, SMALL), -1);
    tokenizer_close(&tokenizer);
}

static void expect_malformed(const char *text, const char *what) {
    struct tokenizer_record record;
    write_text("set_tokenizer.json", text);
    cr_expect_eq(read_record(&record, "set_train_000000.bin"), -1, "%s", text);
    cr_expect_not_null(strstr(error.text, "set_tokenizer.json: "), "%s", error.text);
    cr_expect_not_null(strstr(error.text, what), "%s: %s", text, error.text);
}

#define HASH "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define HEAD                                                                                    \
    "{\"format\":1,\"kind\":\"gpt2\",\"vocab_size\":10,\"directory\":\"/x\",\"sha256\":\"" HASH \
    "\",\"files\":"

Test(tokenizer_record, malformed_records_are_refused) {
    struct tokenizer_record record;
    write_text("set_tokenizer.json", HEAD "{\"a\":{\"bytes\":1,\"sha256\":\"" HASH "\"}}}");
    cr_assert_eq(read_record(&record, "set_train_000000.bin"), 0, "%s", error.text);
    expect_malformed("", "JSON");
    expect_malformed("{", "JSON");
    expect_malformed(HEAD "{}} x", "JSON");
    expect_malformed("[]", "object");
    expect_malformed("{\"format\":\"1\"}", "format");
    expect_malformed("{\"format\":2}", "not known");
    expect_malformed("{\"format\":1,\"kind\":\"gpt2\",\"vocab_size\":0}", "vocab_size");
    expect_malformed("{\"format\":1,\"kind\":\"gpt2\",\"vocab_size\":1048577}", "vocab_size");
    expect_malformed("{\"format\":1,\"kind\":\"gpt2\",\"vocab_size\":1.5}", "vocab_size");
    expect_malformed("{\"format\":1,\"vocab_size\":5}", "kind");
    expect_malformed("{\"format\":1,\"kind\":\"words\",\"vocab_size\":5}",
                     "not one of bytes, gpt2 and files");
    expect_malformed("{\"format\":1,\"kind\":\"bytes\",\"vocab_size\":256}", "directory");
    expect_malformed("{\"format\":1,\"kind\":\"bytes\",\"vocab_size\":256,\"directory\":null}",
                     "files");
    expect_malformed("{\"format\":1,\"kind\":\"gpt2\",\"vocab_size\":10,\"directory\":\"/x\"}",
                     "sha256");
    expect_malformed(HEAD "[]}", "files");
    expect_malformed(HEAD "{\"a\":1}}", "files");
    expect_malformed(HEAD "{\"a\":{\"bytes\":-1,\"sha256\":\"" HASH "\"}}}", "files");
    expect_malformed(HEAD "{\"a\":{\"bytes\":1,\"sha256\":\"short\"}}}", "files");
    expect_malformed(HEAD "{\"a\":{\"bytes\":1}}}", "files");
    expect_malformed(HEAD "{\"a name that is far too long for it\":{\"bytes\":1,\"sha256\":\"" HASH
                          "\"}}}",
                     "files");
#define ONE(name) "\"" name "\":{\"bytes\":1,\"sha256\":\"" HASH "\"}"
    expect_malformed(HEAD "{" ONE("a") "," ONE("b") "," ONE("c") "," ONE("d") "}}", "files");
}

static void expect_mismatch(const struct tokenizer_record *record,
                            const struct tokenizer *tokenizer, const char *what) {
    cr_expect_eq(tokenizer_record_check(record, tokenizer, &error), -1, "%s", what);
    cr_expect_not_null(strstr(error.text, what), "%s", error.text);
    cr_expect_not_null(strstr(error.text, "set_tokenizer.json"), "%s", error.text);
    cr_expect_not_null(strstr(error.text, "./prepare"), "%s", error.text);
}

Test(tokenizer_record, differences_are_named) {
    struct tokenizer tokenizer, bytes;
    struct tokenizer_record record, changed;
    write_small("set");
    cr_assert_eq(read_record(&record, "set_train_000000.bin"), 0);
    open_small(&tokenizer);
    open_bytes(&bytes);
    expect_mismatch(&record, &bytes, "with tokenizer gpt2, not bytes");
    changed = record;
    changed.vocab_size = 50257;
    expect_mismatch(&changed, &tokenizer, "50257 tokens, not 1200");
    changed.vocab_size = 1202;
    tokenizer.left_out = 2;
    cr_expect_eq(tokenizer_record_check(&changed, &tokenizer, &error), 0, "%s", error.text);
    tokenizer.left_out = 0;
    changed = record;
    changed.files[1].sha256[5] ^= 1;
    cr_expect_eq(tokenizer_record_check(&changed, &tokenizer, &error), 0,
                 "the same tokens and merges in a file of other bytes: %s", error.text);
    changed.sha256[5] ^= 1;
    expect_mismatch(&changed, &tokenizer, "its merges.txt differ");
    strcpy(changed.files[1].name, "tokenizer.json");
    expect_mismatch(&changed, &tokenizer, "its tokens or merges differ");
    tokenizer_close(&tokenizer);
    tokenizer_close(&bytes);
}

Test(tokenizer_record, steps_can_be_undone) {
    struct tokenizer tokenizer;
    open_small(&tokenizer);
    cr_assert_eq(tokenizer_record_stage(in_folder("set"), &tokenizer, SMALL, &error), 0);
    cr_assert(file_exists(in_folder("set_tokenizer.json.part")));
    cr_assert_not(file_exists(in_folder("set_tokenizer.json")));
    tokenizer_record_unstage(in_folder("set"));
    tokenizer_record_unstage(in_folder("set"));
    cr_assert_not(file_exists(in_folder("set_tokenizer.json.part")));
    cr_assert_eq(tokenizer_record_publish(in_folder("set"), &error), -1);
    cr_assert_eq(tokenizer_record_remove(in_folder("set"), &error), 0);
    write_small("set");
    cr_assert_eq(tokenizer_record_remove(in_folder("set"), &error), 0);
    cr_assert_not(file_exists(in_folder("set_tokenizer.json")));
    mkdir(in_folder("set_tokenizer.json"), 0755);
    cr_assert_eq(tokenizer_record_remove(in_folder("set"), &error), -1);
    tokenizer_close(&tokenizer);
}
