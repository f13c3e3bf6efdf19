#include "data/util/json.h"

#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct error error;

static cJSON *parse(const char *text) {
    cJSON *root;
    cr_assert_eq(json_parse(&root, text, strlen(text), "x", &error), 0, "%s", error.text);
    return root;
}

Test(json, trees_equal_those_of_cjson) {
    static const char *const texts[] = {
        " null ",
        "[]",
        "{}",
        "[true,false,null,-0,0.1,1e3,12345678901234567890,1E-400,2.5e+300,[[{}]]]",
        "{\"a\":{\"b\":[1,{\"c\":\"d\"}]},\"\":\"\",\"B\":1,\"b\":2}",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20ac\\ud83d\\ude00\x7f\xc3\xa9\"",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        cJSON *root = parse(texts[i]), *expected = cJSON_Parse(texts[i]);
        cr_expect(cJSON_Compare(root, expected, true), "%s", texts[i]);
        cJSON_Delete(root);
        cJSON_Delete(expected);
    }
}

Test(json, numbers_of_any_length_are_read) {
    static const struct {
        const char *before, *after; /* text around 100 zeros */
        double value;
    } cases[] = {
        {"1.", "", 1},      {"-0.", "1e101", -1},      {"1", "", 1e100},
        {"25e-", "1", 2.5}, {"-1", "e999", -INFINITY},
    };
    char zeros[101] = "", text[600], number[200], decimal[64];
    memset(zeros, '0', 100);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(number, sizeof number, "%s%s%s", cases[i].before, zeros, cases[i].after);
        snprintf(text, sizeof text, "{\"a\":[%s,7], \"b\":%s}", number, number);
        cJSON *root = parse(text);
        const cJSON *a = json_member(root, "a"), *b = json_member(root, "b");
        size_t length;
        snprintf(decimal, sizeof decimal, "%g, expected %g", a->child->valuedouble, cases[i].value);
        cr_expect(a->child->valuedouble == cases[i].value, "%s", decimal);
        cr_expect_eq(a->child->next->valuedouble, 7);
        cr_expect_eq(strncmp(json_source(b, text, &length), number, strlen(number)), 0);
        cr_expect_eq(length, strlen(number));
        cJSON_Delete(root);
        cr_assert_eq(json_parse_row(&root, text, strlen(text), &length, &error), 0);
        cr_expect(json_member(root, "b")->valuedouble == cases[i].value, "%s", decimal);
        cJSON_Delete(root);
    }
    cJSON *root;
    snprintf(text, sizeof text, "1%s.", zeros);
    cr_expect_eq(json_parse(&root, text, strlen(text), "x", &error), -1);
    cr_expect_not_null(strstr(error.text, "... is not a JSON number"), "%s", error.text);
}

Test(json, items_have_their_position) {
    const char *text = "\n{\"a\":\n 1.50,\n\"b\"\n: [2,\n\"x\" ]}";
    cJSON *root = parse(text);
    const cJSON *a = json_member(root, "a"), *b = json_member(root, "b");
    size_t length;
    cr_expect_eq(json_line(root, text), 2);
    cr_expect_eq(json_line(a, text), 2, "the line of its key");
    cr_expect_eq(json_line(b, text), 4);
    cr_expect_eq(json_line(b->child->next, text), 6);
    cr_expect_eq(strncmp(json_source(a, text, &length), "1.50", 4), 0);
    cr_expect_eq(length, 4);
    cr_expect_eq(strncmp(json_source(b, text, &length), "[2,\n\"x\" ]", 9), 0);
    cr_expect_eq(length, 9);
    cJSON_Delete(root);
}

Test(json, values_are_counted) {
    const char *text = "{\"a\":[1,2],\"b\":\"3,4,5\"}"; /* five values */
    cJSON *root;
    cr_assert_eq(json_parse_limited(&root, text, strlen(text), 5, "x", &error), 0, "%s",
                 error.text);
    cJSON_Delete(root);
    cr_expect_eq(json_parse_limited(&root, text, strlen(text), 4, "x", &error), -1);
    cr_expect_not_null(strstr(error.text, "more than 4 values"), "%s", error.text);
}

Test(json, keys_differ_in_each_object) {
    static const char *const twice[] = {"{\"a\":1,\"b\":2,\"a\":3}", "[{\"a\":{},\"\\u0061\":1}]"};
    for (size_t i = 0; i < 2; i++) {
        cJSON *root;
        cr_expect_eq(json_parse(&root, twice[i], strlen(twice[i]), "x", &error), -1);
        cr_expect_null(root);
        cr_expect_not_null(strstr(error.text, "\"a\" appears twice"), "%s", error.text);
    }
    cJSON_Delete(parse("{\"a\":{\"a\":[{\"a\":1},{\"a\":1}]},\"A\":1}"));
}
