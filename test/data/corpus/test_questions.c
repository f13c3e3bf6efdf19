#include "data/corpus/questions.h"

#include <criterion/criterion.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "test/match.h"
#include "test/scratch.h"

TestSuite(questions, .init = make_folder, .fini = remove_folder);

/* Writes a file of these bytes, and opens it. */
static int open_bytes(struct question_set *set, const char *bytes, size_t size) {
    const char *path = in_folder("rows.jsonl");
    SUCCEEDS(file_write_whole(path, bytes, size, NULL, &error));
    error.text[0] = '\0';
    return questions_open(set, path, &error);
}

static int open_text(struct question_set *set, const char *text) {
    return open_bytes(set, text, strlen(text));
}

static void expect_choice(const struct question *question, int index, const char *context,
                          const char *continuation, int64_t characters) {
    cr_assert_lt(index, question->count);
    const struct choice *choice = &question->choices[index];
    cr_expect(choice->context_size == strlen(context) &&
                  memcmp(choice->context, context, choice->context_size) == 0,
              "line %zu, choice %d: the context is \"%.*s\"", question->line, index,
              (int)choice->context_size, choice->context);
    cr_expect(choice->continuation_size == strlen(continuation) &&
                  memcmp(choice->continuation, continuation, choice->continuation_size) == 0,
              "line %zu, choice %d: the continuation is \"%.*s\"", question->line, index,
              (int)choice->continuation_size, choice->continuation);
    cr_expect_eq(choice->characters, characters);
    cr_expect_eq(choice->continuation, choice->context + choice->context_size);
}

Test(questions, rows_of_this_program) {
    struct question_set set;
    SUCCEEDS(open_text(
        &set,
        "\xef\xbb\xbf"
        "{\"context\": \"Two and two is\", \"choices\": [\"four\", \" f\\u00fcnf\"], \"answer\": "
        "0}\r\n"
        "\n"
        "{\"answer\":1,\"choices\":[\"a\",\"bc\",\"\xf0\x9f\x98\x80\xc3\xa9\"],\"context\":\"\"}\n"
        "{\"context\":\"Line\\n\\u00a0\",\"choices\":[\"x\",\" y\"],\"answer\":\"1\"}"));
    cr_assert_eq(arrlenu(set.questions), 3);
    const struct question *q = set.questions;
    cr_expect(q[0].line == 1 && q[0].count == 2 && q[0].answer == 0);
    expect_choice(&q[0], 0, "Two and two is", " four", 4);
    expect_choice(&q[0], 1, "Two and two is", " f\xc3\xbcnf", 5);
    cr_expect(q[1].line == 3 && q[1].count == 3 && q[1].answer == 1);
    expect_choice(&q[1], 0, "", "a", 1);
    expect_choice(&q[1], 2, "", "\xf0\x9f\x98\x80\xc3\xa9", 2);
    cr_expect(q[2].line == 4 && q[2].answer == 1);
    expect_choice(&q[2], 0, "Line", "\n\xc2\xa0x", 1);
    expect_choice(&q[2], 1, "Line", "\n\xc2\xa0 y", 2);
    questions_close(&set);
    questions_close(&set);
}

#define GOOD "{\"context\":\"c\",\"choices\":[\"a\",\"b\"],\"answer\":1}\n"

/* Asserts that a file with a good row and then this one is refused; the message begins with its
 * path and continues with `pattern`. */
static void expect_refused(const char *row, const char *pattern) {
    struct question_set set;
    char text[4096], whole[600];
    snprintf(text, sizeof text, GOOD "%s\n" GOOD, row);
    cr_expect_eq(open_text(&set, text), -1, "%s", row);
    cr_expect_null(set.questions);
    snprintf(whole, sizeof whole, "^%s/rows.jsonl:2%s", folder, pattern);
    expect_match(error.text, whole);
}

Test(questions, bad_json) {
    expect_refused("{\"context\":\"c\",,", ":16: expected a key");
    expect_refused("{\"context\":\"c\"} {}", ":17: expected nothing after the end");
    expect_refused("[1]", ": the row is not an object");
    expect_refused("{\"context\":\"\xff\"}", ":13: byte 0xff is not UTF-8");
    expect_refused("{\"context\":\"\\ud800\"}", ":13: .* half a character");
    expect_refused("{\"context\":\"c\",\"context\":\"d\"}", ":16: \"context\" appears twice");
}

Test(questions, bad_rows) {
    expect_refused("{\"context\":\"c\",\"endings\":[]}",
                   ": the fields are not those of a known row");
    cr_expect_not_null(strstr(error.text, "context, choices, answer"), "%s", error.text);
    expect_refused("{\"context\":\"c\",\"choices\":[\"a\",\"b\"]}", ": there is no \"answer\"");
    expect_refused("{\"context\":1,\"choices\":[\"a\",\"b\"],\"answer\":0}",
                   ": \"context\" is not a string.* context, choices, answer");
    expect_refused("{\"context\":\"c\",\"choices\":\"ab\",\"answer\":0}",
                   ": \"choices\" is not an array");
    expect_refused("{\"context\":\"c\",\"choices\":[\"a\",1],\"answer\":0}",
                   ": \"choices\" is not an array of strings");
    expect_refused("{\"context\":\"c\",\"choices\":[],\"answer\":0}", ": .*at least two");
    expect_refused("{\"context\":\"c\",\"choices\":[\"a\"],\"answer\":0}", ": .*at least two");
    expect_refused("{\"context\":\"c\",\"choices\":[\"a\",\"\"],\"answer\":0}",
                   ": choice 2 is empty");
    expect_refused("{\"context\":\"c\",\"choices\":[\"a\",\"b\"],\"answer\":2}",
                   ": \"answer\" is not a whole number from 0 to 1");
    expect_refused("{\"context\":\"c\",\"choices\":[\"a\",\"b\"],\"answer\":0.5}",
                   ": \"answer\" is not a whole number");
    expect_refused("{\"context\":\"c\",\"choices\":[\"a\",\"b\"],\"answer\":\"b\"}",
                   ": \"answer\" is not a whole number");
    expect_refused("{\"context\":\"c\",\"choices\":[\"a\",\"b\"],\"answer\":null}",
                   ": \"answer\" is not the number of a choice");
}

Test(questions, unknown_fields_are_ignored) {
    struct question_set set;
    SUCCEEDS(open_text(&set, "{\"a\":[{},null,1e5],\"context\":\"c\",\"choices\":[\"a\",\"b\"],"
                             "\"answer\":1}\n"));
    expect_choice(&set.questions[0], 1, "c", " b", 1);
    questions_close(&set);
}

Test(questions, other_files) {
    struct question_set set;
    cr_expect_eq(open_text(&set, ""), -1);
    expect_match(error.text, "rows.jsonl:1: the file has no rows");
    cr_expect_eq(open_text(&set, "\xef\xbb\xbf\n \r\n"), -1);
    expect_match(error.text, "rows.jsonl:1: the file has no rows");
    cr_expect_eq(open_text(&set, "\n [" GOOD "]"), -1);
    expect_match(error.text, "rows.jsonl: this is a JSON array.*jq -c");
    cr_expect_eq(open_bytes(&set, "PAR1\0\0\xff", 7), -1);
    expect_match(error.text, "rows.jsonl: this is a Parquet file.*read_parquet");
    cr_expect_eq(open_bytes(&set, "{\"context\":\0}", 13), -1);
    expect_match(error.text, "rows.jsonl:1:12: a NUL byte");
    cr_expect_eq(questions_open(&set, in_folder("nothing.jsonl"), &error), -1);
    expect_match(error.text, "nothing.jsonl");
    questions_close(&set);
}
