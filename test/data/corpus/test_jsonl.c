#include "data/corpus/jsonl.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/error.h"

static struct error error;

/* The row is in memory of exactly its size, so that a sanitizer reports every byte read beyond
 * it. */
static int read_row(const char *row, size_t size, const char *field, char **copy, char **text,
                    size_t *text_size, size_t *column) {
    *copy = malloc(size ? size : 1);
    memcpy(*copy, row, size);
    error.text[0] = '\0';
    struct jsonl_member member = {.name = field};
    const int status = jsonl_row(*copy, size, &member, 1, column, &error);
    *text = member.text;
    *text_size = member.size;
    return status;
}

static void expect_text(const char *row, const char *expected, size_t expected_size) {
    char *copy, *text;
    size_t size, column;
    const int status = read_row(row, strlen(row), "text", &copy, &text, &size, &column);
    cr_expect_eq(status, 0, "%s: %s", row, error.text);
    if (status == 0) {
        cr_expect_eq(size, expected_size, "%s: %zu bytes", row, size);
        cr_expect(size == expected_size && memcmp(text, expected, size) == 0, "%s", row);
    }
    free(copy);
}

static void expect_wrong(const char *row, size_t expected_column, const char *what) {
    char *copy, *text;
    size_t size, column;
    const size_t length = strlen(row);
    cr_expect_eq(read_row(row, length, "text", &copy, &text, &size, &column), -1, "%s", row);
    cr_expect_eq(column, expected_column, "%s: column %zu: %s", row, column, error.text);
    cr_expect_not_null(strstr(error.text, what), "%s: %s", row, error.text);
    cr_expect(memcmp(copy, row, length) == 0, "%s: the row has changed", row);
    free(copy);
}

#define TEXT(row, expected) expect_text(row, expected, sizeof(expected) - 1)

Test(jsonl, finds_the_member_at_any_position) {
    TEXT("{\"text\":\"a\"}", "a");
    TEXT(" \t{ \"text\" : \"\" } \r", "");
    TEXT("{\"id\":1,\"text\":\"two words\",\"more\":null}\r", "two words");
    TEXT("{\"a\":{\"text\":\"inner\"},\"b\":[\"text\",{\"text\":3}],\"text\":\"outer\"}", "outer");
    TEXT("{\"n\":[-0,0.5,10,1e9,-1.25E-3,2e+0,true,false,[],{},\"\"],\"text\":\"x\"}", "x");
    TEXT("{\"te\\u0078t\":\"escaped name\"}", "escaped name");
    TEXT("{\"textual\":1,\"tex\":2,\"text\":\"exact\",\"Text\":3}", "exact");
}

Test(jsonl, another_name) {
    char *copy, *text;
    size_t size, column;
    const char *row = "{\"text\":\"no\",\"\\u00fcber \\\"x\\\"\":\"yes\"}";
    cr_assert_eq(read_row(row, strlen(row), "über \"x\"", &copy, &text, &size, &column), 0);
    cr_assert(size == 3 && memcmp(text, "yes", 3) == 0);
    free(copy);
    row = "{\"\":\"empty name\"}";
    cr_assert_eq(read_row(row, strlen(row), "", &copy, &text, &size, &column), 0);
    cr_assert_eq(size, 10);
    free(copy);
}

/* Reads two members of one row; expected is NULL if the row must be refused. */
static void expect_pair(const char *row, const char *prompt, const char *completion,
                        size_t expected_column, const char *what) {
    struct jsonl_member members[] = {{.name = "prompt"}, {.name = "completion"}};
    const size_t length = strlen(row);
    char *copy = malloc(length);
    size_t column;
    memcpy(copy, row, length);
    error.text[0] = '\0';
    const int status = jsonl_row(copy, length, members, 2, &column, &error);
    cr_expect_eq(status, prompt ? 0 : -1, "%s: %s", row, error.text);
    if (status) {
        cr_expect_eq(column, expected_column, "%s: column %zu", row, column);
        cr_expect_not_null(strstr(error.text, what), "%s: %s", row, error.text);
        cr_expect(memcmp(copy, row, length) == 0, "%s: the row has changed", row);
    } else {
        cr_expect(members[0].size == strlen(prompt) &&
                      memcmp(members[0].text, prompt, members[0].size) == 0,
                  "%s", row);
        cr_expect(members[1].size == strlen(completion) &&
                      memcmp(members[1].text, completion, members[1].size) == 0,
                  "%s", row);
    }
    free(copy);
}

Test(jsonl, two_members_in_any_order) {
    expect_pair("{\"prompt\":\"a\\n\\u00e9\",\"completion\":\"\\\"b\\\"\"}", "a\n\xc3\xa9", "\"b\"",
                0, "");
    expect_pair("{\"completion\":\"b\",\"id\":[{}],\"prompt\":\"a\"}", "a", "b", 0, "");
    expect_pair("{\"prompt\":\"\",\"completion\":\"\"}", "", "", 0, "");
    expect_pair("{\"prompt\":\"a\\n\"}", NULL, NULL, 1,
                "no member \"completion\" (there is \"prompt\")");
    expect_pair("{\"completion\":\"a\"}", NULL, NULL, 1, "no member \"prompt\"");
    expect_pair("{\"prompt\":\"\\n\",\"completion\":null}", NULL, NULL, 29, "not a string");
    expect_pair("{\"prompt\":[{\"role\":\"user\"}],\"completion\":\"\"}", NULL, NULL, 11,
                "not a string");
    expect_pair("{\"prompt\":\"a\",\"completion\":\"b\",\"prompt\":\"c\"}", NULL, NULL, 41,
                "twice");
}

Test(jsonl, lists_the_existing_members) {
    const struct {
        const char *row, *name;
        bool there;
    } cases[] = {
        {"{\"text\":1}", "text", true},
        {"{\"a\":[{\"text\":1}],\"b\":\"text\"}", "text", false},
        {" { \"a\" : 1 , \"te\\u0078t\":2}", "text", true},
        {"{\"a\":1,}", "text", false},
        {"{\"a\":x,\"text\":1}", "text", true},
        {"{\"text\":[1,2", "text", true},
        {"{\"\\\"text\":1,\"a\":{\"text\":1}}", "text", false},
        {"{\"text", "text", false},
        {"{\"text\\", "text", false},
        {"{}", "", false},
        {"", "text", false},
        {"[\"text\"]", "text", false},
        {"{\"text\"}", "text", false},
        {"{\"a\":1} {\"text\":1}", "text", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t size = strlen(cases[i].row);
        char *copy = malloc(size + !size);
        memcpy(copy, cases[i].row, size);
        const char *const names[] = {"other", cases[i].name};
        cr_expect_eq(jsonl_names(copy, size, names, 2), cases[i].there ? 2 : 0, "%s", cases[i].row);
        free(copy);
    }
}

Test(jsonl, escapes_are_decoded_exactly) {
    TEXT("{\"text\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "\"\\/\b\f\n\r\t");
    TEXT("{\"text\":\"a\\u0000b\\u001f\\u007f\"}", "a\0b\x1f\x7f");
    TEXT("{\"text\":\"\\u0080\\u07ff\\u0800\\uFFFF\\ud7ff\\uE000\"}",
         "\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf\xed\x9f\xbf\xee\x80\x80");
    TEXT("{\"text\":\"\\uD83D\\uDe00\\ud800\\udc00\\udbff\\udfff\"}",
         "\xf0\x9f\x98\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf");
    TEXT("{\"text\":\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f\"}",
         "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\x7f");
    TEXT("{\"text\":\"\\\\u0041\\\\\"}", "\\u0041\\");
}

#define HALF "\xef\xbf\xbd"

Test(jsonl, unpaired_surrogates_become_the_replacement_character) {
    TEXT("{\"text\":\"\\ud83d\"}", HALF);
    TEXT("{\"text\":\"\\ude00x\"}", HALF "x");
    TEXT("{\"text\":\"\\ud83d\\ud83d\\ude00\"}", HALF "\xf0\x9f\x98\x80");
    TEXT("{\"text\":\"\\ude00\\ud83d\"}", HALF HALF);
    TEXT("{\"text\":\"\\ud83d\\ue000\\ud83d\\uffff\"}", HALF "\xee\x80\x80" HALF "\xef\xbf\xbf");
    TEXT("{\"text\":\"\\ud83d\\n\\ud83d-ude00\\ud83d\\u0041\"}", HALF "\n" HALF "-ude00" HALF "A");
}

Test(jsonl, errors_have_a_reason_and_a_column) {
    expect_wrong("", 1, "empty");
    expect_wrong("\"text\"", 1, "not an object");
    expect_wrong("  [\"text\",\"a\"]", 3, "not an object");
    expect_wrong("{}", 1, "no member \"text\" (there is none)");
    expect_wrong("{\"id\":1,\"body\":\"x\"}", 1, "(there is \"id\", \"body\")");
    expect_wrong("{\"text\":null}", 9, "not a string");
    expect_wrong("{\"text\":[\"a\"]}", 9, "not a string");
    expect_wrong("{\"text\":\"a\",\"te\\u0078t\":\"b\"}", 25, "twice");
    expect_wrong("{\"text\":\"a\"} x", 14, "nothing after the end");
    expect_wrong("{\"text\":\"a\"}{}", 13, "nothing after the end");
    expect_wrong("{\"text\":\"a\"", 12, "a comma or }, found the end of the text");
    expect_wrong("{\"text\":\"a", 9, "no closing quote");
    expect_wrong("{\"text\":", 9, "a value");
    expect_wrong("{\"text\":\"a\",}", 12, "a comma before }");
    expect_wrong("]", 1, "a value");
    expect_wrong("{,\"text\":\"a\"}", 2, "a key in double quotes");
    expect_wrong("{\"text\" \"a\"}", 9, "a colon after the key");
    expect_wrong("{\"a\":1 \"text\":\"a\"}", 8, "a comma or }");
    expect_wrong("{\"a\":[1,],\"text\":\"a\"}", 8, "a comma before ]");
    expect_wrong("{\"a\":[1 2],\"text\":\"a\"}", 9, "a comma or ]");
    expect_wrong("{\"a\":{\"b\"},\"text\":\"a\"}", 10, "a colon after the key");
    expect_wrong("{'text':\"a\"}", 2, "double quotes");
    expect_wrong("{\"text\":\"\xc3\xa9\t\"}", 11, "control character");
    expect_wrong("{\"text\":\"\\x41\"}", 10, "a backslash in a string");
    expect_wrong("{\"text\":\"\\", 10, "a backslash in a string");
    expect_wrong("{\"text\":\"\\u12", 10, "four hexadecimal digits");
    expect_wrong("{\"text\":\"\\u12g4\"}", 10, "four hexadecimal digits");
}

Test(jsonl, only_the_numbers_and_words_of_json) {
    const char *bad[] = {"01",   "+1", ".5",  "1.",   "1.e3", "1e",  "1e+",       "-",   "0x10",
                         "NaN",  "-a", "nul", "True", "1 2",  "--1", "Infinity",  "'a'", "tru",
                         "1,2]", "]",  "\"a", "{",    "[",    "{]",  "undefined", "/**/"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char row[100], *copy, *text;
        size_t size, column;
        snprintf(row, sizeof row, "{\"a\":%s,\"text\":\"x\"}", bad[i]);
        cr_expect_eq(read_row(row, strlen(row), "text", &copy, &text, &size, &column), -1, "%s",
                     row);
        free(copy);
    }
}

Test(jsonl, bytes_that_are_not_utf8_are_refused) {
    expect_wrong("{\"text\":\"ab\xff\"}", 12, "not UTF-8");
    expect_wrong("{\"text\":\"\xc3\"}", 10, "not UTF-8");
    expect_wrong("{\"text\":\"\xed\xa0\x80\"}", 10, "not UTF-8");
    expect_wrong("{\"\xc0\x80\":1,\"text\":\"a\"}", 3, "not UTF-8");
    expect_wrong("{\"text\":\"\xe2\x82", 10, "not UTF-8");
    /* A NUL is neither white space nor the end. */
    char *copy, *text;
    size_t size, column;
    cr_expect_eq(read_row("{\"text\":\"a\"}\0", 13, "text", &copy, &text, &size, &column), -1);
    cr_expect_eq(column, 13);
    free(copy);
    cr_expect_eq(read_row("{\"text\":\"a\0\"}", 13, "text", &copy, &text, &size, &column), -1);
    cr_expect_eq(column, 11);
    free(copy);
    cr_expect_eq(read_row("{\"text\":\"\\\0\"}", 13, "text", &copy, &text, &size, &column), -1);
    free(copy);
}

Test(jsonl, depth_has_a_limit) {
    char row[2000];
    for (int depth = 254; depth <= 256; depth++) {
        char *copy, *text;
        size_t size, column;
        char *at = row + sprintf(row, "{\"a\":");
        memset(at, '[', (size_t)depth);
        memset(at + depth, ']', (size_t)depth);
        sprintf(at + 2 * depth, ",\"text\":\"x\"}");
        cr_expect_eq(read_row(row, strlen(row), "text", &copy, &text, &size, &column),
                     depth <= 255 ? 0 : -1, "%d", depth);
        free(copy);
    }
    /* Far too deep for the stack. */
    const size_t size = 1 << 20;
    char *deep = malloc(size), *copy, *text;
    size_t text_size, column;
    memset(deep, '[', size);
    memcpy(deep, "{\"a\":", 5);
    cr_expect_eq(read_row(deep, size, "text", &copy, &text, &text_size, &column), -1);
    cr_expect_eq(column, 261);
    free(copy);
    free(deep);
}

Test(jsonl, many_long_names_do_not_fit_the_message) {
    char row[3000] = "{";
    for (int i = 0; i < 40; i++) sprintf(row + strlen(row), "\"member number %d\":%d,", i, i);
    strcpy(row + strlen(row) - 1, "}");
    expect_wrong(row, 1, "\"member number 0\", ");
}

Test(jsonl, blank_lines_are_recognized) {
    cr_expect(jsonl_is_blank("", 0));
    cr_expect(jsonl_is_blank(" \t\r", 3));
    cr_expect_not(jsonl_is_blank(" \0", 2));
    cr_expect_not(jsonl_is_blank("x   ", 4));
}

/* A member may be a string or a list, whose objects have either of two pairs of members. */
Test(jsonl, a_string_or_a_list) {
    static const struct jsonl_member message[] = {{.name = "role"}, {.name = "content"}},
                                     part[] = {{.name = "text"},
                                               {.name = "train", .kind = JSONL_BOOLEAN}};
    static const struct {
        const char *value, *what;
        enum jsonl_kind kind;
        const struct jsonl_member *of;
        int items;
    } cases[] = {
        {"\"a\"", NULL, JSONL_STRING, message, 0},
        {"[]", NULL, JSONL_LIST, message, 0},
        {"[{\"role\":\"r\",\"content\":\"c\"}]", NULL, JSONL_LIST, message, 2},
        {"[{\"text\":\"t\",\"train\":true},{\"train\":false,\"text\":\"u\"}]", NULL, JSONL_LIST,
         part, 4},
        {"[{\"role\":\"r\",\"content\":\"c\"},{\"text\":\"t\",\"train\":true}]",
         "no member \"role\"", JSONL_LIST, message, 0},
        {"[{\"text\":\"t\",\"train\":1}]", "not true or false", JSONL_LIST, part, 0},
        {"[[]]", "not an object", JSONL_LIST, message, 0},
        {"null", "neither a string nor a list", JSONL_STRING, message, 0},
        {"{}", "neither a string nor a list", JSONL_STRING, message, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char row[200];
        size_t column;
        struct jsonl_member member = {
            .name = "m", .kind = JSONL_STRING_OR_LIST, .of = message, .or_of = part};
        snprintf(row, sizeof row, "{\"\u00e9\":0,\"m\": %s}", cases[i].value);
        const int status = jsonl_row(row, strlen(row), &member, 1, &column, &error);
        cr_expect_eq(status, cases[i].what ? -1 : 0, "%s: %s", cases[i].value, error.text);
        if (cases[i].what) cr_expect_not_null(strstr(error.text, cases[i].what), "%s", error.text);
        if (status == 0) {
            cr_expect_eq(member.at, 13, "%zu", member.at); /* bytes, of which e acute has two */
            cr_expect_eq(member.kind, cases[i].kind, "%s", cases[i].value);
            cr_expect_eq(member.of, cases[i].of, "%s", cases[i].value);
            cr_expect_eq(arrlen(member.items), cases[i].items, "%s", cases[i].value);
        }
        arrfree(member.items);
    }
}
