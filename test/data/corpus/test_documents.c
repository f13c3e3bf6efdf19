#include "data/util/signals.h"
#include "data/corpus/documents.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "test/scratch.h"

enum { NAMES_MAX = 4 };

static void enter_folder(void) {
    make_folder();
    cr_assert_eq(chdir(folder), 0);
    signals_catch_waiting();
}

TestSuite(documents, .init = enter_folder, .fini = remove_folder);

struct reading {
    struct inputs inputs;
    struct documents documents;
    char *names[NAMES_MAX];
    int count;
};

static void open_reading(struct reading *reading, bool split_documents) {
    cr_assert_eq(inputs_open(&reading->inputs, reading->names, reading->count, false, &error), 0,
                 "%s", error.text);
    cr_assert_eq(documents_open(&reading->documents, &reading->inputs, "text", NULL, &error), 0);
    reading->documents.split_documents = split_documents;
}

static void close_reading(struct reading *reading) {
    documents_close(&reading->documents);
    inputs_close(&reading->inputs);
}

static void put(const char *name, const void *bytes, size_t size) {
    FILE *file = fopen(name, "w");
    cr_assert_not_null(file, "%s", name);
    cr_assert_eq(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static void put_text(const char *name, const char *text) {
    put(name, text, strlen(text));
}

/* Returns everything as one text: { precedes a document of text, [ one of JSON Lines, < a prompt
 * and > its completion. status: 1 or -1, the result that ended it. */
static char *read_all(struct reading *reading, int *status) {
    struct document_piece piece;
    char *all = NULL;
    while ((*status = documents_next(&reading->documents, &piece, &error)) == 0) {
        cr_assert(piece.size > 0 || piece.is_row);
        cr_assert_eq(piece.begins && piece.is_row,
                     piece.is_row && !(piece.form == DOCUMENT_ANSWER && piece.in_loss));
        if (piece.form == DOCUMENT_ANSWER) arrput(all, piece.in_loss ? '>' : '<');
        else if (piece.begins) arrput(all, piece.is_row ? '[' : '{');
        if (piece.size > 0) memcpy(arraddnptr(all, piece.size), piece.text, piece.size);
    }
    arrput(all, '\0');
    return all;
}

static void expect_read(struct reading *reading, bool split_documents, const char *expected) {
    int status;
    open_reading(reading, split_documents);
    char *all = read_all(reading, &status);
    cr_expect_eq(status, 1, "%s", error.text);
    cr_expect_str_eq(all, expected);
    arrfree(all);
    close_reading(reading);
}

#define READING(...)                                                                      \
    &(struct reading) {                                                                   \
        .names = {__VA_ARGS__}, .count = sizeof((char *[]){__VA_ARGS__}) / sizeof(char *) \
    }

Test(documents, files_are_documents_and_so_are_rows) {
    put_text("a.txt", "one\r\ntwo");
    put_text("empty.txt", "");
    put_text("b.jsonl", "{\"text\":\"x\"}\n\n  \r\n{\"text\":\"\"}\r\n{\"text\":\"y\\n\"}");
    put_text("c.txt", "three\n");
    expect_read(READING("a.txt", "empty.txt", "b.jsonl", "c.txt"), true,
                "{one\r\ntwo[x[[y\n{three\n");
    expect_read(READING("a.txt", "empty.txt", "b.jsonl", "c.txt"), false,
                "{one\r\ntwo[x[[y\n{three\n");
}

Test(documents, end_of_text_divides_text_files_if_enabled) {
    put_text("a.txt", "<|endoftext|>one\n<|endoftext|><|endoftext|>\ntwo<|endoftext|>");
    put_text("b.txt", "<|endoftext|<|endoftext|>>|endoftext|>");
    put_text("c.jsonl", "{\"text\":\"a<|endoftext|>b\"}\n");
    expect_read(READING("a.txt", "b.txt", "c.jsonl"), true,
                "{one\n{\ntwo{<|endoftext|{>|endoftext|>[a<|endoftext|>b");
    expect_read(READING("a.txt"), false,
                "{<|endoftext|>one\n<|endoftext|><|endoftext|>\ntwo<|endoftext|>");
}

Test(documents, a_byte_order_mark_is_left_out_where_it_means_nothing) {
    put_text("a.txt", "\xef\xbb\xbf"
                      "a\xef\xbb\xbf");
    put_text("b.jsonl", "\xef\xbb\xbf{\"text\":\"b\"}");
    put_text("c.txt", "\xef\xbb");
    put_text("d.txt", "\xef\xbb\xbf");
    expect_read(READING("a.txt", "b.jsonl", "c.txt", "d.txt"), true, "{a\xef\xbb\xbf[b{\xef\xbb");
    expect_read(READING("a.txt", "b.jsonl", "c.txt", "d.txt"), false,
                "{\xef\xbb\xbf"
                "a\xef\xbb\xbf[b{\xef\xbb{\xef\xbb\xbf");
}

/* A mark at every position around the end of the buffer of 1 MiB. */
Test(documents, end_of_text_is_found_across_reads) {
    enum { MIB = 1 << 20 };
    char *text = malloc(MIB + 100);
    for (int at = MIB - 14; at <= MIB + 1; at++) {
        memset(text, '<', MIB + 100);
        memcpy(text + at, "<|endoftext|>", 13);
        put("a.txt", text, MIB + 50);
        struct reading *reading = READING("a.txt");
        struct document_piece piece;
        size_t sizes[2] = {0};
        int count = 0;
        open_reading(reading, true);
        while (documents_next(&reading->documents, &piece, &error) == 0) {
            count += piece.begins;
            cr_assert(count >= 1 && count <= 2, "%d", at);
            sizes[count - 1] += piece.size;
        }
        cr_expect_eq(count, 2, "%d", at);
        cr_expect_eq(sizes[0], (size_t)at);
        cr_expect_eq(sizes[1], (size_t)(MIB + 50 - at - 13));
        close_reading(reading);
    }
    free(text);
}

/* Reads the documents through a pipe that gives a few bytes at a time. */
Test(documents, odd_pieces_give_the_same_documents) {
    const char text[] = "\xef\xbb\xbf"
                        "first<|endoftext|>second <|endof<|endoftext|>third";
    for (size_t step = 1; step < 20; step++) {
        int ends[2], status;
        cr_assert_eq(pipe(ends), 0);
        const pid_t child = fork();
        if (child == 0) {
            for (size_t at = 0; at < sizeof text - 1; at += step) {
                const size_t left = sizeof text - 1 - at;
                if (write(ends[1], text + at, left < step ? left : step) < 0) _exit(1);
                usleep(200);
            }
            _exit(0);
        }
        close(ends[1]);
        cr_assert_eq(dup2(ends[0], STDIN_FILENO), STDIN_FILENO);
        close(ends[0]);
        struct reading *reading = READING("-");
        open_reading(reading, true);
        char *all = read_all(reading, &status);
        cr_assert_eq(status, 1, "%s", error.text);
        cr_assert_str_eq(all, "{first{second <|endof{third", "steps of %zu", step);
        cr_assert_eq(reading->documents.bytes_read, sizeof text - 1);
        arrfree(all);
        close_reading(reading);
        waitpid(child, &status, 0);
        cr_assert_eq(status, 0);
    }
}

/* Rows of all sizes up to several times the buffer. */
Test(documents, rows_of_any_length_are_whole) {
    const size_t sizes[] = {0, 1, 1000, (1 << 20) - 12, (1 << 20) - 11, 1 << 20, 3 << 20, 7};
    FILE *file = fopen("a.jsonl", "w");
    for (int i = 0; i < 8; i++) {
        fputs("{\"text\":\"", file);
        for (size_t j = 0; j < sizes[i]; j++) fputc('a' + (int)(j % 26), file);
        fputs(i == 7 ? "\"}" : "\"}\n", file);
    }
    fclose(file);
    struct reading *reading = READING("a.jsonl");
    struct document_piece piece;
    open_reading(reading, true);
    for (int i = 0; i < 8; i++) {
        cr_assert_eq(documents_next(&reading->documents, &piece, &error), 0, "%s", error.text);
        cr_assert_eq(piece.size, sizes[i], "row %d", i);
        size_t wrong = 0;
        for (size_t j = 0; j < piece.size; j++) wrong += piece.text[j] != 'a' + (int)(j % 26);
        cr_assert_eq(wrong, 0);
    }
    cr_assert_eq(documents_next(&reading->documents, &piece, &error), RESULT_NONE);
    cr_assert_eq(documents_next(&reading->documents, &piece, &error), RESULT_NONE);
    close_reading(reading);
}

/* A long row is an error also where the buffer already holds its end. */
Test(documents, a_long_row_before_others_is_an_error) {
    char *files[] = {"a.jsonl", "l.json"};
    put_text("a.jsonl",
             "{\"text\":\"0123456789\"}\n{\"text\":\"01234567890\"}\n{\"text\":\"b\"}\n");
    put_text("l.json", "[{\"text\":\"0123456789\"},\n{\"text\":\"01234567890\"},{\"text\":\"b\"}]");
    for (int i = 0; i < 2; i++) {
        int status;
        struct reading *reading = READING(files[i]);
        open_reading(reading, true);
        reading->documents.row_bytes_max = 21;
        char *all = read_all(reading, &status);
        cr_expect_eq(status, -1);
        cr_expect_str_eq(all, "[0123456789");
        cr_expect_not_null(strstr(error.text, "line 2: the row is longer than"), "%s", error.text);
        arrfree(all);
        close_reading(reading);
    }
}

Test(documents, an_endless_row_is_an_error) {
    FILE *file = fopen("a.jsonl", "w");
    fputs("{\"text\":\"fine\"}\n", file);
    for (int i = 0; i < 3 << 20; i++) fputc('x', file);
    fclose(file);
    /* First it ends far beyond the limit, then one byte beyond it. */
    for (int i = 0; i < 2; i++) {
        int status;
        struct reading *reading = READING("a.jsonl");
        open_reading(reading, true);
        reading->documents.row_bytes_max = 2 << 20;
        char *all = read_all(reading, &status);
        cr_assert_eq(status, -1);
        cr_assert_str_eq(all, "[fine");
        cr_assert_not_null(strstr(error.text, "a.jsonl, line 2: the row is longer than 2 MiB"),
                           "%s", error.text);
        arrfree(all);
        close_reading(reading);
        cr_assert_eq(truncate("a.jsonl", 16 + (2 << 20) + 1), 0);
    }
}

Test(documents, bad_rows_stop_or_are_counted) {
    int status;
    put_text("a.jsonl", "{\"text\":\"one\"}\n\n{\"text\":1}\n{\"text\":\"two\"}\nrubbish\n");
    struct reading *reading = READING("a.jsonl");
    open_reading(reading, true);
    char *all = read_all(reading, &status);
    cr_assert_eq(status, -1);
    cr_assert_str_eq(all, "[one");
    cr_assert_not_null(strstr(error.text, "a.jsonl, line 3, column 9: the member is not a string"),
                       "%s", error.text);
    cr_assert_not_null(strstr(error.text, "--skip-bad-rows"), "%s", error.text);
    arrfree(all);
    close_reading(reading);

    reading = READING("a.jsonl");
    open_reading(reading, true);
    reading->documents.skip_bad_rows = true;
    all = read_all(reading, &status);
    cr_assert_eq(status, 1, "%s", error.text);
    cr_assert_str_eq(all, "[one[two");
    cr_assert_eq(reading->documents.bad_rows, 2);
    cr_assert_str_eq(reading->documents.first_bad_row,
                     "a.jsonl, line 3, column 9: the member is not a string");
    arrfree(all);
    close_reading(reading);
}

Test(documents, a_deleted_input_is_named) {
    struct document_piece piece;
    put_text("a.txt", "a");
    put_text("b.txt", "b");
    struct reading *reading = READING("a.txt", "b.txt");
    open_reading(reading, true);
    cr_assert_eq(documents_next(&reading->documents, &piece, &error), 0);
    unlink("b.txt");
    cr_assert_eq(documents_next(&reading->documents, &piece, &error), -1);
    cr_assert_not_null(strstr(error.text, "b.txt"), "%s", error.text);
    close_reading(reading);
}

Test(documents, an_interrupt_ends_the_reading) {
    struct document_piece piece;
    put_text("a.txt", "a");
    struct reading *reading = READING("a.txt");
    open_reading(reading, true);
    raise(SIGTERM);
    cr_assert_eq(documents_next(&reading->documents, &piece, &error), -1);
    cr_assert_not_null(strstr(error.text, "interrupted"), "%s", error.text);
    cr_assert_eq(signals_wait(-1), SIGTERM);
    close_reading(reading);
}

/* Opens the inputs with `field`, and reads everything. */
static char *read_field(struct reading *reading, const char *field, int *status) {
    cr_assert_eq(inputs_open(&reading->inputs, reading->names, reading->count, false, &error), 0);
    cr_assert_eq(documents_open(&reading->documents, &reading->inputs, field, NULL, &error), 0);
    error.text[0] = '\0';
    char *all = read_all(reading, status);
    close_reading(reading);
    return all;
}

static void expect_field(struct reading *reading, const char *field, const char *expected,
                         const char *message) {
    int status;
    char *all = read_field(reading, field, &status);
    cr_expect_eq(status, message ? -1 : 1, "%s", error.text);
    cr_expect_str_eq(all, expected);
    if (message) cr_expect_not_null(strstr(error.text, message), "%s", error.text);
    arrfree(all);
}

Test(documents, pairs_are_a_prompt_and_its_completion) {
    put_text("a.jsonl", "{\"prompt\":\"q\\n\",\"completion\":\" a\"}\n\n"
                        "{\"completion\":\"b\",\"id\":1,\"prompt\":\"\"}\n"
                        "{\"completion\":\"\\u00e9\",\"prompt\":\"\"}");
    put_text("b.txt", "text");
    put_text("c.jsonl", "{\"prompt\":\"x\",\"completion\":\"y\",\"text\":\"z\"}\n");
    expect_field(READING("a.jsonl", "b.txt", "c.jsonl"), NULL, "<q\n> a<>b<>\xc3\xa9{text<x>y",
                 NULL);
    expect_field(READING("c.jsonl"), NULL, "[z", NULL);
    expect_field(READING("c.jsonl"), "prompt,completion", "<x>y", NULL);
    expect_field(READING("c.jsonl"), "text,prompt", "<z>x", NULL);
    expect_field(READING("c.jsonl"), "prompt", "[x", NULL);
}

/* The kind of the first row holds for all rows. */
Test(documents, rows_of_two_kinds_do_not_mix) {
    const char *pair = "{\"prompt\":\"q\",\"completion\":\"a\"}\n", *text = "{\"text\":\"t\"}\n";
    char rows[300];
    snprintf(rows, sizeof rows, "%s%s%s", pair, text, pair);
    put_text("a.jsonl", rows);
    snprintf(rows, sizeof rows, "%s%s%s", text, pair, text);
    put_text("b.jsonl", rows);
    put_text("c.jsonl", "{\"prompt\":\"q\"}");
    put_text("d.jsonl", "{\"content\":\"q\"}");
    put_text("e.jsonl", "{\"prompt\":\"q\",\"completion\":7}");
    expect_field(READING("a.jsonl"), NULL, "<q>a",
                 "a.jsonl, line 2, column 1: there is no member \"prompt\" (there is \"text\")");
    cr_expect_not_null(strstr(error.text, "with \"prompt\" and \"completion\", both strings"));
    expect_field(READING("b.jsonl"), NULL, "[t",
                 "b.jsonl, line 2, column 1: there is no member \"text\"");
    expect_field(READING("c.jsonl"), NULL, "", "no member \"completion\" (there is \"prompt\")");
    expect_field(READING("d.jsonl"), NULL, "", "no member \"text\" (there is \"content\")");
    expect_field(READING("e.jsonl"), NULL, "",
                 "e.jsonl, line 1, column 28: the member is neither a string nor a list");
}

Test(documents, a_byte_order_mark_before_a_later_row_is_named) {
    put_text("a.jsonl", "{\"text\":\"t\"}\n\xef\xbb\xbf{\"text\":\"u\"}\n");
    expect_field(READING("a.jsonl"), NULL, "[t",
                 "a.jsonl, line 2, column 1: found a byte order mark before the value");
}

Test(documents, advice_about_a_broken_row_follows_its_keys) {
    put_text("a.jsonl", "{\"id\":1,\"segments\":[{\"text\":\"t\",}]}");
    expect_field(READING("a.jsonl"), NULL, "", "a.jsonl, line 1, column 32: a comma before }");
    cr_expect_not_null(strstr(error.text, "object with \"segments\""), "%s", error.text);
}

/* A skipped row decides nothing. */
Test(documents, the_first_good_row_decides) {
    struct reading *reading = READING("a.jsonl");
    int status;
    put_text("a.jsonl", "{\"content\":1}\n{\"text\":2}\n{\"prompt\":\"q\",\"completion\":\"a\"}\n"
                        "{\"text\":\"t\"}\n");
    cr_assert_eq(inputs_open(&reading->inputs, reading->names, reading->count, false, &error), 0);
    cr_assert_eq(documents_open(&reading->documents, &reading->inputs, NULL, NULL, &error), 0);
    reading->documents.skip_bad_rows = true;
    char *all = read_all(reading, &status);
    cr_expect_eq(status, 1, "%s", error.text);
    cr_expect_str_eq(all, "<q>a");
    cr_expect_eq(reading->documents.bad_rows, 3);
    cr_expect_not_null(strstr(reading->documents.first_bad_row, "line 1"));
    arrfree(all);
    close_reading(reading);
}

Test(documents, a_list_of_rows_is_read_like_lines) {
    const char *bad[][2] = {
        {"[{\"text\":\"a\"} {\"text\":\"b\"}]", "l.json, line 1, column 15: "},
        {"[{\"text\":\"a\"}\n", "l.json, line 1: the list has no end"},
        {"[", "line 1: the list has no end"},
        {"[{\"text\":\"a]", "line 1: the list has no end"},
        {"[{\"text\":\"a\"},\n]", "l.json, line 2, column 1"},
        {"[{\"text\":\"a\"}]\n{\"text\":\"b\"}", "line 2: something follows the list"},
        {"[{\"text\":\"a\"},\n\n\n 7]", "l.json, line 4, column 2: the row is not an object"},
        {"[\n {\n  \"text\": \"a\"\n },\n {\n  \"\u00e9\": [],\n  \"text\": 7\n }\n]",
         "l.json, line 7, column 11: the member is not a string"},
    };
    put_text("l.json",
             "\xef\xbb\xbf\n [ {\"text\":\"a],[\\\"\\\\\"} ,\n{\n\"id\":[{},[]],\"text\":\"b\"}\n"
             ",{\"text\":\"\"}]\n \n");
    put_text("m.json", " []\n");
    put_text("k.json", "[{\"text\"\n:\"e\"}]");
    put_text("n.json", "{\"text\":\"c\"}\n{\"text\":\"d\"}");
    expect_field(READING("l.json", "m.json", "n.json"), NULL, "[a],[\"\\[b[[c[d", NULL);
    expect_field(READING("k.json"), NULL, "[e", NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int status;
        put_text("l.json", bad[i][0]);
        char *all = read_field(READING("l.json"), NULL, &status);
        arrfree(all);
        cr_expect_eq(status, -1, "%s", bad[i][0]);
        cr_expect_not_null(strstr(error.text, bad[i][1]), "%s: %s", bad[i][0], error.text);
    }
}

/* Rows longer than the buffer, in a list as in lines. */
Test(documents, long_rows_of_a_list_are_whole) {
    enum { SIZE = 3 << 20 };
    char *text = malloc(2 * SIZE + 100), *expected = malloc(2 * SIZE + 100);
    size_t size = 0, length = 0;
    text[size++] = '[';
    for (int row = 0; row < 2; row++) {
        size += (size_t)sprintf(text + size, "%s{\"text\":\"", row ? ",\n" : "");
        expected[length++] = '[';
        memset(text + size, 'x' + row, SIZE);
        memset(expected + length, 'x' + row, SIZE);
        size += SIZE, length += SIZE;
        size += (size_t)sprintf(text + size, "\"}");
    }
    text[size++] = ']';
    expected[length] = '\0';
    put("l.json", text, size);
    int status;
    char *all = read_field(READING("l.json"), NULL, &status);
    cr_expect_eq(status, 1, "%s", error.text);
    cr_expect(strcmp(all, expected) == 0);
    arrfree(all);
    free(text);
    free(expected);
}

Test(documents, a_field_is_one_to_three_names) {
    const char *bad[] = {",", "a,", ",b", "a,b,", "a,b,a", "a,b,c,d", "a,a"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct inputs inputs = {0};
        struct documents documents;
        cr_expect_eq(documents_open(&documents, &inputs, bad[i], NULL, &error), -1, "%s", bad[i]);
        cr_expect_not_null(strstr(error.text, bad[i]), "%s", error.text);
        documents_close(&documents);
    }
}
