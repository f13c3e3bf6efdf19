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
