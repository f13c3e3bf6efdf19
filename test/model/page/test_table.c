/* Exact output of tables: on the terminal, as Markdown and as HTML. */
#include <criterion/criterion.h>

#include "model/page/table.h"
#include "test/model/page/markup.h"

static struct table table;

static void set_up(void) {
    table = (struct table){0};
}

static void tear_down(void) {
    table_free(&table);
    free(printed);
}

TestSuite(table, .init = set_up, .fini = tear_down);

static const char *as_text(int width) {
    FILE *out = printed_begin();
    table_print_text(out, &table, width);
    printed_end(out);
    return printed;
}

static const char *as_markdown(void) {
    FILE *out = printed_begin();
    table_print_markdown(out, &table);
    printed_end(out);
    return printed;
}

static const char *as_html(void) {
    FILE *out = printed_begin();
    table_print_html(out, &table);
    printed_end(out);
    return printed;
}

static void fill_small(void) {
    table_column(&table, "precision", TABLE_LEFT);
    table_column(&table, "loss", TABLE_RIGHT);
    table_column(&table, "note", TABLE_LEFT);
    table_cell(&table, "%s", "fp32");
    table_cell(&table, "%.3f", 1.5);
    table_cell(&table, "a");
    table_cell(&table, "bf16");
    table_cell(&table, "%.2f", 12345.125);
    table_cell(&table, "bcd");
}

Test(table, text) {
    fill_small();
    cr_expect_eq(table_rows(&table), 2);
    cr_expect_str_eq(as_text(80), "precision      loss  note\n"
                                  "---------  --------  ----\n"
                                  "fp32          1.500  a\n"
                                  "bf16       12345.12  bcd\n");
}

Test(table, a_row_that_is_not_full_is_not_printed) {
    fill_small();
    table_cell(&table, "fp16");
    cr_expect_eq(table_rows(&table), 2);
    cr_expect_null(strstr(as_text(80), "fp16"));
    cr_expect_null(strstr(as_markdown(), "fp16"));
    cr_expect_null(strstr(as_html(), "fp16"));
}

Test(table, characters_are_counted_not_bytes) {
    table_column(&table, "µ", TABLE_RIGHT);
    table_column(&table, "±", TABLE_LEFT);
    table_column(&table, "end", TABLE_LEFT);
    table_cell(&table, "1.2 µs");
    table_cell(&table, "± 0.5 ×");
    table_cell(&table, "x");
    cr_expect_str_eq(as_text(80), "     µ  ±        end\n"
                                  "------  -------  ---\n"
                                  "1.2 µs  ± 0.5 ×  x\n");
    cr_expect_str_eq(as_markdown(), "| µ | ± | end |\n"
                                    "| ---: | --- | --- |\n"
                                    "| 1.2 µs | ± 0.5 × | x |\n");
}

Test(table, lines_have_no_spaces_at_their_end) {
    table_column(&table, "a", TABLE_LEFT);
    table_column(&table, "b", TABLE_LEFT);
    table_cell(&table, "wide enough");
    table_cell(&table, "%s", "");
    cr_expect_str_eq(as_text(80), "a            b\n"
                                  "-----------  -\n"
                                  "wide enough\n");
}

Test(table, an_empty_cell_in_the_middle_keeps_its_place) {
    table_column(&table, "a", TABLE_LEFT);
    table_column(&table, "bcd", TABLE_RIGHT);
    table_column(&table, "e", TABLE_RIGHT);
    table_cell(&table, "1");
    table_cell(&table, "%s", "");
    table_cell(&table, "22");
    cr_expect_str_eq(as_text(80), "a  bcd   e\n"
                                  "-  ---  --\n"
                                  "1       22\n");
}

Test(table, too_wide_is_printed_in_blocks) {
    table_column(&table, "name", TABLE_LEFT);
    for (int i = 0; i < 5; i++) table_column(&table, i % 2 ? "odd_one" : "even_one", TABLE_RIGHT);
    for (int row = 0; row < 2; row++) {
        table_cell(&table, row ? "second" : "first");
        for (int i = 0; i < 5; i++) table_cell(&table, "%d", 10 * row + i);
    }
    cr_expect_str_eq(as_text(26), "name    even_one  odd_one\n"
                                  "------  --------  -------\n"
                                  "first          0        1\n"
                                  "second        10       11\n"
                                  "\n"
                                  "name    even_one  odd_one\n"
                                  "------  --------  -------\n"
                                  "first          2        3\n"
                                  "second        12       13\n"
                                  "\n"
                                  "name    even_one\n"
                                  "------  --------\n"
                                  "first          4\n"
                                  "second        14\n");
    cr_expect_eq(occurrences(as_text(25), "---\n"), 3, "25 columns are just enough");
    cr_expect_eq(occurrences(as_text(24), "---\n"), 5);
}

static void fill_with_names(void) {
    table_column(&table, "run", TABLE_LEFT);
    table_column(&table, "bf16:dtype=lower", TABLE_RIGHT);
    table_column(&table, "of it", TABLE_RIGHT);
    table_cell(&table, "fp16:a=1:bc=2,d=3");
    table_cell(&table, "1.5 ms");
    table_cell(&table, "2 %%");
}

Test(table, wide_tables_wrap_names_not_figures) {
    fill_with_names();
    cr_expect_str_eq(as_text(42), "run                bf16:dtype=lower  of it\n"
                                  "-----------------  ----------------  -----\n"
                                  "fp16:a=1:bc=2,d=3            1.5 ms    2 %\n");
    cr_expect_str_eq(as_text(41), "run                      bf16:   of\n"
                                  "                   dtype=lower   it\n"
                                  "-----------------  -----------  ---\n"
                                  "fp16:a=1:bc=2,d=3       1.5 ms  2 %\n");
    cr_expect_str_eq(as_text(29), "run                bf16:   of\n"
                                  "             dtype=lower   it\n"
                                  "-----------  -----------  ---\n"
                                  "fp16:a=1:         1.5 ms  2 %\n"
                                  "bc=2,d=3\n");
}

Test(table, names_stay_whole_in_blocks) {
    table_columns(&table, TABLE_RIGHT, "run", "a", "b", "c", "d", NULL);
    table_cell(&table, "fp16:a=1:bc=2:d=3");
    for (int i = 1; i <= 4; i++) table_cell(&table, "%d", 100000000 * i);
    cr_expect_str_eq(as_text(39), "              run          a          b\n"
                                  "-----------------  ---------  ---------\n"
                                  "fp16:a=1:bc=2:d=3  100000000  200000000\n"
                                  "\n"
                                  "              run          c          d\n"
                                  "-----------------  ---------  ---------\n"
                                  "fp16:a=1:bc=2:d=3  300000000  400000000\n");
}

Test(table, a_cell_wider_than_all_is_broken_at_spaces) {
    table_column(&table, "op", TABLE_LEFT);
    table_column(&table, "why", TABLE_LEFT);
    table_cell(&table, "gelu");
    table_cell(&table, "its values overflow in fp16");
    table_cell(&table, "matmul");
    table_cell(&table, "ok");
    cr_expect_str_eq(as_text(20), "op      why\n"
                                  "------  ------------\n"
                                  "gelu    its values\n"
                                  "        overflow in\n"
                                  "        fp16\n"
                                  "matmul  ok\n");
}

Test(table, a_word_wider_than_all_is_broken) {
    table_column(&table, "a", TABLE_RIGHT);
    table_cell(&table, "0123456789±abc");
    cr_expect_str_eq(as_text(11), "          a\n"
                                  "-----------\n"
                                  "0123456789±\n"
                                  "        abc\n");
}

/* For any width and texts of many lengths, no line is too wide and no text is lost. */
Test(table, stays_within_any_width) {
    static const char text[] = "abcdefghij klm nopqrstuvwxyz ±±±±±±±± ";
    for (int i = 0; i < 7; i++) table_column(&table, i == 3 ? text : "h", i % 2);
    for (int i = 0; i < 21; i++) table_cell(&table, "%.*s", i * 5 % 37, text);
    for (int width = 8; width < 130; width++) {
        char *line = strdup(as_text(width)), *all = line;
        for (char *end; (end = strchr(line, '\n')); line = end + 1) {
            int wide = 0;
            for (char *at = line; at < end; at++) wide += (*at & 0xc0) != 0x80;
            cr_assert_leq(wide, width, "%.*s", (int)(end - line), line);
            cr_assert(end == line || end[-1] != ' ');
        }
        free(all);
        cr_expect_geq(occurrences(printed, "±"), 8);
    }
}

Test(table, control_characters_do_not_reach_the_terminal) {
    table_column(&table, "a", TABLE_LEFT);
    table_cell(&table, "x\ny\t\x1b[31m");
    cr_expect_str_eq(as_text(80), "a\n---------\nx y  [31m\n");
    cr_expect_str_eq(as_markdown(), "| a |\n| --- |\n| x y  \\[31m |\n");
}

Test(table, markdown) {
    fill_small();
    cr_expect_str_eq(as_markdown(), "| precision | loss | note |\n"
                                    "| --- | ---: | --- |\n"
                                    "| fp32 | 1.500 | a |\n"
                                    "| bf16 | 12345.12 | bcd |\n");
}

Test(table, markdown_is_escaped) {
    table_column(&table, "a|b", TABLE_LEFT);
    table_cell(&table, "%s", "grad_norm _x_ *y* `z` [l](m) <b> \\ a&b $c$ ~d~ |");
    cr_expect_str_eq(as_markdown(),
                     "| a\\|b |\n"
                     "| --- |\n"
                     "| grad_norm \\_x\\_ \\*y\\* \\`z\\` \\[l\\](m) \\<b\\> \\\\ a\\&b \\$c\\$ "
                     "\\~d\\~ \\| |\n");
}

Test(table, html) {
    table_column(&table, "a & b", TABLE_LEFT);
    table_column(&table, "c", TABLE_RIGHT);
    table_cell(&table, "<x>");
    table_cell(&table, "\"1\" ± 2");
    cr_expect_str_eq(as_html(),
                     "<div class=\"table\" tabindex=\"0\"><table>\n<thead>\n"
                     "<tr><th scope=\"col\">a &amp; b</th><th scope=\"col\" class=\"right\">c</th>"
                     "</tr>\n</thead>\n<tbody>\n"
                     "<tr><th scope=\"row\">&lt;x&gt;</th>"
                     "<td class=\"right\">&quot;1&quot; ± 2</td></tr>\n"
                     "</tbody>\n</table></div>\n");
    expect_well_formed(printed);
}

Test(table, without_rows_or_columns) {
    cr_expect_eq(table_rows(&table), 0);
    cr_expect_str_eq(as_text(80), "");
    cr_expect_str_eq(as_markdown(), "");
    cr_expect_str_eq(as_html(), "");
    table_column(&table, "loss", TABLE_RIGHT);
    cr_expect_eq(table_rows(&table), 0);
    cr_expect_str_eq(as_text(80), "loss\n----\n");
    cr_expect_str_eq(as_markdown(), "| loss |\n| ---: |\n");
    expect_well_formed(as_html());
}

Test(table, can_be_used_again_after_it_was_freed) {
    fill_small();
    table_free(&table);
    cr_expect_eq(table_rows(&table), 0);
    fill_small();
    cr_expect_eq(table_rows(&table), 2);
}
