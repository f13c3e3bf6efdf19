/* Text of reports: exact output of tables and paragraphs, and tables of JSON objects. */
#include "data/util/table.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

static struct table table;
static char *printed;

static void set_up(void) {
    table = (struct table){0};
    printed = NULL;
}

static void tear_down(void) {
    free(printed);
}

TestSuite(table, .init = set_up, .fini = tear_down);

/* Prints the table, which frees it. */
static const char *as_text(void) {
    size_t size;
    free(printed);
    FILE *out = open_memstream(&printed, &size);
    cr_assert_not_null(out);
    table_print(out, &table);
    cr_assert_eq(fclose(out), 0);
    cr_assert_eq(strlen(printed), size, "a NUL in it");
    return printed;
}

/* Fills the table. heads begin with < or > for their alignment; NULL ends both lists. */
static void fill(const char *const *heads, const char *const *cells) {
    for (; *heads; heads++)
        table_column(&table, *heads + 1, **heads == '<' ? TABLE_LEFT : TABLE_RIGHT);
    for (; *cells; cells++) table_cell(&table, "%s", *cells);
}
#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

static void fill_small(void) {
    fill(LIST("<precision", ">loss", "<note"), LIST("fp32", "1.500", "a"));
    table_cell(&table, "bf%d", 16);
    table_cell(&table, "%.2f", 12345.125);
    table_cell(&table, "bcd");
}

Test(table, text) {
    fill_small();
    cr_expect_eq(table_rows(&table), 2);
    cr_expect_str_eq(as_text(), "precision      loss  note\n"
                                "---------  --------  ----\n"
                                "fp32          1.500  a\n"
                                "bf16       12345.12  bcd\n");
}

Test(table, characters_are_counted_not_bytes) {
    fill(LIST(">µ", "<±", "<end"), LIST("1.2 µs", "± 0.5 ×", "x"));
    cr_expect_str_eq(as_text(), "     µ  ±        end\n"
                                "------  -------  ---\n"
                                "1.2 µs  ± 0.5 ×  x\n");
}

/* Lines have no spaces at their end, and a cell in the middle keeps its place. */
Test(table, empty_cells) {
    fill(LIST("<a", "<b"), LIST("wide enough", ""));
    cr_expect_str_eq(as_text(), "a            b\n"
                                "-----------  -\n"
                                "wide enough\n");
    fill(LIST("<a", ">bcd", ">e"), LIST("1", "", "22"));
    cr_expect_str_eq(as_text(), "a  bcd   e\n"
                                "-  ---  --\n"
                                "1       22\n");
}

Test(table, a_row_that_is_not_full_is_not_printed) {
    fill_small();
    table_cell(&table, "fp16");
    cr_expect_eq(table_rows(&table), 2);
    cr_expect_null(strstr(as_text(), "fp16"));
}

/* Four columns, of which three fit beside the name. */
Test(table, too_wide_is_printed_in_blocks) {
    static const char odd[] = ">odd_one_of_many_columns_that_are_wi";
    fill(LIST("<name", ">even", odd, ">even", odd),
         LIST("first", "0", "1", "2", "3", "second", "10", "11", "12", "13"));
    cr_expect_str_eq(as_text(), "name    even  odd_one_of_many_columns_that_are_wi  even\n"
                                "------  ----  -----------------------------------  ----\n"
                                "first      0                                    1     2\n"
                                "second    10                                   11    12\n"
                                "\n"
                                "name    odd_one_of_many_columns_that_are_wi\n"
                                "------  -----------------------------------\n"
                                "first                                     3\n"
                                "second                                   13\n");
}

Test(table, wide_tables_wrap_names_not_figures) {
    fill(LIST("<run", ">bf16:gradients.dtype=lower:autocast.residual=lower", ">of it"),
         LIST("fp16:gradients.dtype=lower,bc=2,d=3", "1.5 ms", "2 %"));
    cr_expect_str_eq(as_text(),
                     "run                                                    bf16:   of\n"
                     "                                      gradients.dtype=lower:   it\n"
                     "                                     autocast.residual=lower\n"
                     "-----------------------------------  -----------------------  ---\n"
                     "fp16:gradients.dtype=lower,bc=2,d=3                   1.5 ms  2 %\n");
}

Test(table, a_cell_wider_than_all_is_broken_at_spaces) {
    fill(LIST("<op", "<why"),
         LIST("attention_projection",
              "its values overflow in fp16, and so do its gradients, which are summed"));
    cr_expect_str_eq(
        as_text(),
        "op                    why\n"
        "--------------------  ----------------------------------------------------------\n"
        "attention_projection  its values overflow in fp16, and so do its gradients,\n"
        "                      which are summed\n");
}

/* For texts of many lengths, no line is too wide and no text is lost. */
Test(table, stays_within_80_columns) {
    static const char text[] = "abcdefghij klm nopqrstuvwxyz ±±±±±±±± abcdefghij klm nopqrstuvw "
                               "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz xyz ";
    for (int step = 1; step < 40; step++) {
        int written = 0, found = 0;
        for (int i = 0; i < 7; i++) table_column(&table, i == 3 ? text : "h", i % 2);
        for (int i = 0; i < 21; i++) {
            int length = i * step % (int)(sizeof text - 1);
            while ((text[length] & 0xc0) == 0x80) length++;
            for (int k = 0; k < length; k++) written += text[k] == 'z';
            table_cell(&table, "%.*s", length, text);
        }
        for (const char *line = as_text(), *end; (end = strchr(line, '\n')); line = end + 1) {
            int wide = 0;
            for (const char *at = line; at < end; at++) wide += (*at & 0xc0) != 0x80;
            cr_assert_leq(wide, 80, "%.*s", (int)(end - line), line);
            cr_assert(end == line || end[-1] != ' ');
        }
        for (const char *at = printed; *at; at++) found += *at == 'z';
        cr_assert_geq(found, written, "%s", printed); /* the name column may be repeated */
    }
}

Test(table, control_characters_do_not_reach_the_terminal) {
    fill(LIST("<a\x1b[2J"), LIST("x\ny\t\x1b[31m\u202e\xff"));
    cr_expect_str_eq(as_text(), "a?[2J\n-----------\nx y ?[31m??\n");
}

Test(table, without_rows) {
    cr_expect_eq(table_rows(&table), 0);
    table_column(&table, "loss", TABLE_RIGHT);
    cr_expect_eq(table_rows(&table), 0);
    cr_expect_str_eq(as_text(), "loss\n----\n");
    fill_small(); /* a printed table is empty and can be filled again */
    cr_expect_eq(table_rows(&table), 2);
    table_free(&table);
}

/* ---- paragraphs */

#define X30 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
#define X80 X30 X30 "xxxxxxxxxxxxxxxxxxxx"

Test(table, paragraphs_are_wrapped_at_80_columns) {
    static const char *const cases[][2] = {
        {"a b", "a b\n"},
        {X30 " " X30 " xxxxxxxxxxxxxxxxxx", X30 " " X30 " xxxxxxxxxxxxxxxxxx\n"},
        {X30 " " X30 " xxxxxxxxxxxxxxxxxxx", X30 " " X30 "\n  xxxxxxxxxxxxxxxxxxx\n"},
        {"a " X80 "y b", "a\n  " X80 "y\n  b\n"},
        {X80 "y", X80 "y\n"},
        {"fp32\x1b[2J\u202e", "fp32?[2J?\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t size;
        free(printed);
        FILE *out = open_memstream(&printed, &size);
        text_print(out, 2, "%s", cases[i][0]);
        fclose(out);
        cr_expect_str_eq(printed, cases[i][1]);
    }
}

/* ---- tables of JSON objects */

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

static const char *shown(const char *json, const struct section *with) {
    cJSON *rows = cJSON_Parse(json);
    size_t size;
    cr_assert_not_null(rows);
    free(printed);
    FILE *out = open_memstream(&printed, &size);
    section_print(out, with, rows);
    fclose(out);
    cJSON_Delete(rows);
    return printed;
}

static const char rows[] =
    "[{\"name\": \"h.0\", \"kind\": \"h\", \"a\": {\"number\": 1.5}, \"db\": 9, "
    "\"share\": 0.25, \"bytes\": 1048576, \"scale\": 4294967300, \"is\": true},"
    "{\"name\": \"h.1\", \"kind\": \"h\", \"a\": {\"number\": 2}, \"db\": -3, "
    "\"bytes\": 3221225472, \"scale\": 1000, \"is\": \"fp32\"},"
    "{\"name\": \"empty\", \"kind\": \"empty\", \"scale\": 8, \"is\": 0}]";

Test(table, text_shows_the_worst_of_a_kind) {
    cr_expect_str_eq(shown(rows, &section), "\n"
                                            "Figures\n"
                                            "Some.\n"
                                            "\n"
                                            "name  number  change    dB  share     bytes  scale\n"
                                            "----  ------  ------  ----  -----  --------  -----\n"
                                            "h     2.00 x      +2  -3.0  25.0%  3.00 GiB   2^32\n");
}

Test(table, without_a_kind_every_row_is_shown) {
    struct section all = section;
    all.kind = NULL;
    cr_expect_str_eq(strchr(shown(rows, &all) + 1, '\n'),
                     "\n"
                     "Some.\n"
                     "\n"
                     "name  number  change    dB  share     bytes  scale\n"
                     "----  ------  ------  ----  -----  --------  -----\n"
                     "h.0   1.50 x      +2   9.0  25.0%   1.0 MiB   2^32\n"
                     "h.1   2.00 x      +2  -3.0      -  3.00 GiB      -\n");
}

Test(table, without_figures_nothing) {
    cr_expect_str_eq(shown("[]", &section), "");
    cr_expect_str_eq(shown("[{\"name\": \"a\", \"bytes\": null}]", &section), "");
}

Test(table, scale_text) {
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

Test(table, percent) {
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

Test(table, decimals_that_round_to_minus_zero_have_no_sign) {
    const struct {
        double value;
        int decimals;
        bool sign;
        const char *text;
    } cases[] = {{-0.0004, 3, true, "0.000"}, {0, 3, true, "+0.000"},
                 {0.0004, 3, true, "+0.000"}, {-0.04, 1, false, "0.0"},
                 {-0.06, 1, false, "-0.1"},   {-0.0006, 3, true, "-0.001"},
                 {0.5, 2, true, "+0.50"},     {1234, 0, false, "1234"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_str_eq(decimal(cases[i].value, cases[i].decimals, cases[i].sign).text,
                         cases[i].text);
}
