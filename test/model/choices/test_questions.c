#include "model/choices/questions.h"

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

/* As scripts/questions.py writes them. */
Test(questions, contexts_and_delimiters_of_their_own) {
    struct question_set set;
    SUCCEEDS(open_text(&set, "{\"context\":[\"a \",\"\"],\"choices\":[\"x\",\" y\"],\"answer\":0,"
                             "\"delimiter\":\" \"}\n"
                             "{\"context\":\"a\",\"choices\":[\"x\",\"y\"],\"answer\":0,"
                             "\"delimiter\":\"\",\"question\":\"q\",\"subject\":\"ignored\"}\n"));
    expect_choice(&set.questions[0], 0, "a", "  x", 1);
    expect_choice(&set.questions[0], 1, "", "  y", 2);
    expect_choice(&set.questions[1], 1, "a", "y", 1);
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
    expect_refused("{\"context\":\"c\",\"context\":\"d\"}", ": \"context\" appears twice");
}

#define ROW(context, choices, answer) \
    "{\"context\":" context ",\"choices\":" choices ",\"answer\":" answer "}"
#define ANSWER(answer) ROW("\"c\"", "[\"a\",\"b\"]", answer)

Test(questions, bad_rows) {
    static const char *const cases[][2] = {
        {"{\"endings\":[]}", ": there is no \"context\".* context, choices, answer"},
        {"{\"context\":\"c\",\"choices\":[\"a\",\"b\"]}", ": there is no \"answer\""},
        {ROW("1", "[\"a\",\"b\"]", "0"),
         ": \"context\" is not a string.* context, choices, answer"},
        {ROW("[\"c\"]", "[\"a\",\"b\"]", "0"), ": .* an array with a string for each choice"},
        {ROW("[\"c\",\"d\",\"e\"]", "[\"a\",\"b\"]", "0"), ": .* a string for each choice"},
        {ROW("[\"c\",1]", "[\"a\",\"b\"]", "0"), ": .* a string for each choice"},
        {ROW("\"c\"", "\"ab\"", "0"), ": \"choices\" is not an array"},
        {ROW("\"c\"", "[\"a\",1]", "0"), ": \"choices\" is not an array of strings"},
        {ROW("\"c\"", "[]", "0"), ": .*at least two"},
        {ROW("\"c\"", "[\"a\"]", "0"), ": .*at least two"},
        {ROW("\"c\"", "[\"a\",\"\"]", "0"), ": choice 2 is empty"},
        {ANSWER("0,\"delimiter\":1"), ": \"delimiter\" is not a string"},
        {ANSWER("0,\"delimiter\":\"\\u0000\""), ": \"delimiter\" has .u0000"},
        {ANSWER("0,\"answer\":1"), ": \"answer\" appears twice"},
        {ROW("\"c\\u0000\"", "[\"a\",\"b\"]", "0"), ": \"context\" has .u0000"},
        {ROW("\"c\"", "[\"a\",\"\\u0000b\"]", "0"), ": \"choices\" has .u0000"},
        {ANSWER("2"), ": \"answer\" is not a whole number from 0 to 1"},
        {ANSWER("0.5"), ": \"answer\" is not a whole number"},
        {ANSWER("\"b\""), ": \"answer\" is not a whole number"},
        {ANSWER("null"), ": \"answer\" is not the number of a choice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(cases[i][0], cases[i][1]);
}

Test(questions, rows_of_benchmarks_name_the_script) {
    static const char *const cases[][2] = {
        {"{\"ctx_a\":\"a\",\"endings\":[]}", "HellaSwag"},
        {"{\"question\":{},\"answerKey\":\"A\"}", "ARC"},
        {"{\"goal\":\"g\",\"sol1\":\"a\"}", "PIQA"},
        {"{\"sentence\":\"_\",\"option1\":\"a\",\"answer\":\"1\"}", "WinoGrande"},
        {"{\"question\":\"q\",\"subject\":\"s\",\"choices\":[\"a\",\"b\"],\"answer\":0}", "MMLU"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char pattern[100];
        snprintf(pattern, sizeof pattern,
                 ": this is a row of %s.*python3 scripts/questions.py FILE ", cases[i][1]);
        expect_refused(cases[i][0], pattern);
    }
}

/* Each choice has a copy of the context, here 100 MB of a row of 1 MB. */
Test(questions, choices_times_context_are_limited) {
    enum { CONTEXT = 1000000, CHOICES = 100 };
    struct question_set set;
    char *row = malloc(CONTEXT + 1000), *end = row + sprintf(row, "{\"context\":\"");
    memset(end, 'a', CONTEXT);
    end += CONTEXT;
    end += sprintf(end, "\",\"answer\":0,\"choices\":[\"x\"");
    for (int i = 1; i < CHOICES; i++) end += sprintf(end, ",\"x\"");
    sprintf(end, "]}");
    cr_expect_eq(open_text(&set, row), -1);
    expect_match(error.text, ":1: the context before each of its choices makes more than 64 MiB");
    free(row);
}

Test(questions, unknown_fields_are_ignored) {
    enum { NUMBERS = 100001 };
    char text[2000] = "{\"a\":\"\\ud800\",\"context\":\"c\",\"deep\":";
    struct question_set set;
    for (int i = 0; i < 100; i++) strcat(text, "[");
    for (int i = 0; i < 100; i++) strcat(text, "]");
    strcat(text,
           ",\"a\":1,\"choices\":[\"a\",\"b\"],\"\":{\"\\u0000\":[1e5,{}]}\t,\"answer\":1}\n");
    SUCCEEDS(open_text(&set, text));
    expect_choice(&set.questions[0], 1, "c", " b", 1);
    questions_close(&set);
    char *many = malloc(sizeof text + 2 * NUMBERS), *end = stpcpy(many, "{\"a\":[0");
    for (int i = 1; i < NUMBERS; i++) end = stpcpy(end, ",0");
    strcpy(end, "],\"context\":\"c\",\"choices\":[\"a\",\"b\"],\"answer\":0}");
    SUCCEEDS(open_text(&set, many));
    expect_choice(&set.questions[0], 0, "c", " a", 1);
    questions_close(&set);
    free(many);
}

Test(questions, unpaired_surrogates_become_replacement_characters) {
    struct question_set set;
    SUCCEEDS(open_text(&set, ROW("\"\\ud800\"", "[\"a\",\"b\"]", "0")));
    expect_choice(&set.questions[0], 0, "\xef\xbf\xbd", " a", 1);
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
    expect_match(error.text,
                 "rows.jsonl: this is a Parquet file.*questions.py FILE questions.jsonl");
    cr_expect_eq(open_bytes(&set, "{\"context\":\0}", 13), -1);
    expect_match(error.text, "rows.jsonl:1:12: a NUL byte");
    cr_expect_eq(questions_open(&set, in_folder("nothing.jsonl"), &error), -1);
    expect_match(error.text, "nothing.jsonl");
    questions_close(&set);
}
