/* Sections: formats of figures, absent ones, worst rows, and sections without figures. */
#include <criterion/criterion.h>
#include <math.h>

#include <cjson/cJSON.h>

#include "model/page/section.h"
#include "test/model/page/markup.h"

static const struct section section = {.title = "Figures",
                                       .note = "Some.",
                                       .kind = "kind",
                                       .columns = {{"name", "name"},
                                                   {"number", "a.number", SHOW_NUMBER, 2, " x"},
                                                   {"change", "a.number", SHOW_CHANGE, 0},
                                                   {"dB", "db", SHOW_DECIBELS},
                                                   {"share", "share", SHOW_SHARE},
                                                   {"bytes", "bytes", SHOW_BYTES},
                                                   {"scale", "scale", SHOW_SCALE, .needs = "is"},
                                                   {"none", "none"}}};

static const char *shown(const char *json, enum page_form form) {
    cJSON *rows = cJSON_Parse(json);
    struct page page;
    cr_assert_not_null(rows);
    FILE *out = printed_begin();
    page_begin(&page, form, "a", "b");
    section_print(&page, &section, rows);
    page_end(&page, out);
    printed_end(out);
    cJSON_Delete(rows);
    return strchr(printed, '\n') + 1;
}

static const char rows[] =
    "[{\"name\": \"h.0\", \"kind\": \"h\", \"a\": {\"number\": 1.5}, \"db\": 9, "
    "\"share\": 0.25, \"bytes\": 1048576, \"scale\": 4294967300, \"is\": true},"
    "{\"name\": \"h.1\", \"kind\": \"h\", \"a\": {\"number\": 2}, \"db\": -3, "
    "\"bytes\": 3221225472, \"scale\": 1000, \"is\": \"fp32\"},"
    "{\"name\": \"empty\", \"kind\": \"empty\", \"scale\": 8, \"is\": 0}]";

Test(section, text_shows_the_worst_of_a_kind) {
    cr_expect_str_eq(shown(rows, PAGE_TEXT),
                     "\n"
                     "Figures\n"
                     "Some.\n"
                     "\n"
                     "name  number  change    dB  share     bytes  scale\n"
                     "----  ------  ------  ----  -----  --------  -----\n"
                     "h     2.00 x      +2  -3.0  25.0%  3.00 GiB   2^32\n");
}

Test(section, other_forms_show_every_row) {
    cr_expect_str_eq(shown(rows, PAGE_MARKDOWN),
                     "\n"
                     "## Figures\n"
                     "\n"
                     "Some.\n"
                     "\n"
                     "| name | number | change | dB | share | bytes | scale |\n"
                     "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
                     "| h.0 | 1.50 x | +2 | 9.0 | 25.0% | 1.0 MiB | 2^32 |\n"
                     "| h.1 | 2.00 x | +2 | -3.0 | - | 3.00 GiB | - |\n");
}

Test(section, without_figures_nothing) {
    cr_expect_str_eq(shown("[]", PAGE_TEXT), "");
    cr_expect_str_eq(shown("[{\"name\": \"a\", \"bytes\": null}]", PAGE_TEXT), "");
}

Test(section, scale_text) {
    static const struct {
        double scale;
        const char *text;
    } cases[] = {
        {65536, "2^16"}, {4294967300.0, "2^32"}, /* nine digits of 2^32 */
        {1, "2^0"},      {6.10351562e-05, "2^-14"}, {1000, "1000"}, {65535, "65535"}, {0.3, "0.3"},
    };
    char text[SCALE_TEXT_MAX];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_str_eq(scale_text(text, cases[i].scale), cases[i].text, "%g: %s", cases[i].scale,
                         text);
}

Test(section, percent) {
    static const struct {
        double share;
        const char *expected;
    } cases[] = {
        {0, "0%"},         {1, "100.0%"},        {0.123, "12.3%"},
        {0.0123, "1.23%"}, {0.000123, "0.012%"}, {1e-5, "0.001%"},
        {1e-7, "<.001%"},  {-0.05, "-5.00%"},    {INFINITY, "inf"},
        {NAN, "inf"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_str_eq(percent(cases[i].share).text, cases[i].expected);
}
