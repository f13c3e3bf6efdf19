/* Runs the program itself: folders, patterns and JSON Lines, as bytes. */
#include "test/data/corpus/prepare_fixture.h"

TestSuite(prepare_documents, .init = make_folder, .fini = remove_folder);

static void expect_error(const char *arguments, const char *what, const char *remedy) {
    cr_expect_eq(run(arguments), 1, "%s", arguments);
    cr_expect_not_null(strstr(error_text, what), "%s: %s", arguments, error_text);
    cr_expect_not_null(strstr(error_text, remedy), "%s: %s", arguments, error_text);
    cr_expect_str_empty(out_text);
    cr_expect_not(exists("set_train_000000.bin"));
    cr_expect_not(exists("set_tokenizer.json"));
}

Test(prepare_documents, json_lines_become_documents) {
    write_text("a.jsonl", "{\"text\":\"one\",\"id\":1}\r\n\n{\"id\":2,\"text\":\"two\\n\"}\n");
    write_text("b.ndjson", "\xef\xbb\xbf{\"text\":\"three\"}");
    write_text("c.txt", "four");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --out set a.jsonl b.ndjson c.txt"), 0,
                 "%s", error_text);
    expect_tokens("set_train_*.bin", "one\n\ntwo\n\n\nthree\n\nfour");
    cr_assert_not_null(strstr(out_text, "4 documents"), "%s", out_text);
    cr_assert_str_empty(error_text);
}

Test(prepare_documents, rows_come_from_the_standard_input_too) {
    int ends[2];
    const char *rows = "{\"body\":\"one\"}\n{\"body\":\"two\"}";
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(write(ends[1], rows, strlen(rows)), (ssize_t)strlen(rows));
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    close(ends[1]);
    pid_t child = start("--tokenizer bytes --val-fraction 0.5 --jsonl --field body --out set -",
                        ends[0], RLIM_INFINITY);
    close(ends[0]);
    cr_assert_eq(finish(child), 0, "%s", error_text);
    expect_tokens("set_train_*.bin", "one");
    expect_tokens("set_val_*.bin", "two");
}

Test(prepare_documents, bad_rows_stop_with_line_and_column) {
    write_text("a.jsonl", "{\"text\":\"one\"}\n{\"text\":2}\n");
    write_text("b.jsonl", "{\"text\":\"one\"}\n\n{\"content\":\"x\"}\n");
    expect_error("--tokenizer bytes --out set a.jsonl", "a.jsonl, line 2, column 9: the member is",
                 "--skip-bad-rows");
    expect_error("--tokenizer bytes --out set b.jsonl",
                 "b.jsonl, line 3, column 1: there is no member \"text\" (there is \"content\")",
                 "--field");
    cr_assert_eq(
        run("--tokenizer bytes --skip-bad-rows --val-fraction 0 --out set b.jsonl a.jsonl"), 0,
        "%s", error_text);
    expect_tokens("set_train_*.bin", "one\n\none");
    cr_assert_not_null(strstr(error_text, "2 bad rows were left out, the first: b.jsonl, line 3"),
                       "%s", error_text);
    cr_assert_eq(run("--tokenizer bytes --skip-bad-rows --force --field none --out set b.jsonl"),
                 1);
    cr_assert_not_null(strstr(error_text, "no text"), "%s", error_text);
    expect_tokens("set_train_*.bin", "one\n\none");
}

Test(prepare_documents, folders_and_patterns_are_searched) {
    mkdir(in_folder("d"), 0755);
    mkdir(in_folder("d/sub"), 0755);
    write_text("d/b.txt", "B");
    write_text("d/a.md", "A");
    write_text("d/.hidden.txt", "H");
    write_text("d/sub/c.jsonl", "{\"text\":\"C\"}");
    write_text("d/x.log", "X");
    write_text("y.log", "Y");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --out set d d/*.log [y].log"), 0, "%s",
                 error_text);
    expect_tokens("set_train_*.bin", "AB\n\nC\n\nXY");
    cr_assert_not_null(strstr(error_text, "1 file was skipped because of"), "%s", error_text);
    cr_assert_not_null(strstr(error_text, "d/x.log"), "%s", error_text);
}

Test(prepare_documents, refusals_name_a_remedy) {
    write_text("a.jsonl.gz", "x");
    write_text("a.txt", "x");
    write_text("rows", "{\"content\":\"x\"}");
    expect_error("--tokenizer bytes --out set a.jsonl.gz", "compressed",
                 "gzip -dc a.jsonl.gz | ./prepare ... --jsonl -");
    expect_error("--tokenizer bytes --out set *.nothing", "nothing matches", "pattern");
    expect_error("--tokenizer bytes --field body --out set a.txt", "--field is for rows",
                 "add --jsonl");
    expect_error("--tokenizer bytes --skip-bad-rows --out set a.txt", "--skip-bad-rows is for",
                 "add --jsonl");
    expect_error("--tokenizer bytes --jsonl --out set rows", "rows, line 1, column 1", "--field");
    expect_error("--tokenizer gpt2:nowhere --out set a.txt", "nowhere", "name one");
    expect_error("--tokenizer gpt2:. --out set a.txt", "no tokenizer", "vocab.json");
}

/* A vocabulary of a, b, line feeds and spaces, in vocab.json and merges.txt. */
Test(prepare_documents, counts_bytes_without_a_token) {
    cr_assert_eq(directory_create(in_folder("few"), &error), 0, "%s", error.text);
    write_text("few/merges.txt", "#version: 0.2\na b\n");
    write_text(
        "few/vocab.json",
        "{\"a\": 0, \"b\": 1, \"ab\": 2, \"\u010a\": 3, \"\u0120\": 4, \"<|endoftext|>\": 5}");
    write_text("a.txt", "a b\nab<|endoftext|>b\n");
    write_text("b.txt", "b\na<|endoftext|>a\na\tb\na\r\n");
    write_text("c.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"a\\ncb\"}\n");
    cr_assert_eq(run("--tokenizer few --val-fraction 0 --out set a.txt"), 0, "%s", error_text);
    cr_expect_str_empty(error_text);
    cr_assert_eq(run("--tokenizer few --val-fraction 0 --out two a.txt b.txt c.jsonl"), 0, "%s",
                 error_text);
    cr_expect_not_null(strstr(error_text, "note: 3 bytes have no token in this "
                                          "vocabulary, and are lost as in Hugging Face's "
                                          "tokenizers; the first: 0x09 in b.txt, line 3\n"),
                       "%s", error_text);
    cr_assert_eq(run("--tokenizer few --val-fraction 0 --out one c.jsonl"), 0, "%s", error_text);
    cr_expect_not_null(strstr(error_text, "1 byte has no token"), "%s", error_text);
    cr_expect_not_null(strstr(error_text, "the first: 0x63 in c.jsonl, line 2\n"), "%s",
                       error_text);
}

/* The second text of a long row is encoded after the last tokens of the first. The unknown token's
 * name is longer than the byte that it stands for. tokenizers gives 1500 and two tokens. */
Test(prepare_documents, a_byte_without_a_token_in_a_long_row) {
    char *row;
    size_t size;
    cr_assert_eq(directory_create(in_folder("few"), &error), 0, "%s", error.text);
    write_text(
        "few/tokenizer.json",
        "{\"added_tokens\": [{\"id\": 4, \"content\": \"<|endoftext|>\", \"special\": true}], "
        "\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
        "\"add_prefix_space\": false}, \"post_processor\": null, \"decoder\": {\"type\": "
        "\"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\", "
        "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"<unk>\": 3, \"<|endoftext|>\": 4}, "
        "\"merges\": [\"a b\"]}}");
    FILE *out = open_memstream(&row, &size);
    fputs("{\"segments\": [{\"text\": \"", out);
    for (int i = 0; i < 1500; i++) fputs("ab", out);
    fputs("\", \"train\": false}, {\"text\": \"cab\", \"train\": true}]}\n", out);
    cr_assert_eq(fclose(out), 0);
    write_text("a.jsonl", row);
    free(row);
    cr_assert_eq(run("--tokenizer few --val-fraction 0 --out set a.jsonl"), 0, "%s", error_text);
    cr_expect_eq(strncmp(out_text, "1502 training tokens (2 count", 29), 0, "%s", out_text);
}
