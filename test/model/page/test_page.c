/* Pages: well-formed, escaped, without external resources, with light and dark colours. */
#include <criterion/criterion.h>

#include "model/page/escape.h"
#include "model/page/page.h"
#include "test/model/page/markup.h"

static const char *text_of(const char *text) {
    FILE *out = printed_begin();
    escape_html(out, text, true);
    printed_end(out);
    return printed;
}

Test(page, text_is_escaped) {
    cr_expect_str_eq(text_of("a < b && \"c\" > 'd'"), "a &lt; b &amp;&amp; &quot;c&quot; &gt; 'd'");
    cr_expect_str_eq(text_of("1 µm ± 2 × 𝄞\n\tend"), "1 µm ± 2 × 𝄞\n\tend");
    cr_expect_str_eq(text_of(""), "");
}

Test(page, invalid_text_is_replaced) {
    cr_expect_str_eq(text_of("a\xff"
                             "b\xc3"),
                     "a\uFFFDb\uFFFD");
    cr_expect_str_eq(text_of("\xc0\xaf\x1b[0m\x7f"), "\uFFFD\uFFFD\uFFFD[0m\uFFFD");
    cr_expect_str_eq(text_of("\u202e\xc2\x9b"), "\uFFFD\uFFFD");
}

Test(page, names_may_be_broken) {
    cr_expect_str_eq(text_of("bf16:a.b=1:c=<2>,d: 3 %, e:"),
                     "bf16:<wbr>a.b=1:<wbr>c=&lt;2&gt;,<wbr>d: 3 %, e:");
}

static void print_page(enum page_form form) {
    struct page page;
    struct table table = {0};
    FILE *out = printed_begin();
    page_begin(&page, form, "A <title> & \"more\"", "the <summary>");
    page_heading(&page, "A <heading>");
    page_paragraph(&page, "5 <words>, 100 %");
    page_code(&page, "  if (a < b && c)");
    page_note(&page, PAGE_GOOD, "PASS", "bf16 <= 0.5 %%");
    page_note(&page, PAGE_BAD, "FAIL", "fp%d", 16);
    page_note(&page, PAGE_NEUTRAL, "NOTE", "fp32\x1b[2J");
    table_column(&table, "a", TABLE_LEFT);
    table_cell(&table, "<b>");
    page_table(&page, &table);
    page_end(&page, out);
    printed_end(out);
}

Test(page, text) {
    print_page(PAGE_TEXT);
    cr_expect_str_eq(printed, "A <title> & \"more\": the <summary>\n"
                              "\n"
                              "A <heading>\n"
                              "5 <words>, 100 %\n"
                              "\n"
                              "  if (a < b && c)\n"
                              "PASS: bf16 <= 0.5 %\n"
                              "FAIL: fp16\n"
                              "NOTE: fp32?[2J\n"
                              "\n"
                              "a\n"
                              "---\n"
                              "<b>\n");
}

Test(page, markdown) {
    print_page(PAGE_MARKDOWN);
    cr_expect_str_eq(printed, "# A \\<title\\> \\& \"more\": the \\<summary\\>\n"
                              "\n"
                              "## A \\<heading\\>\n"
                              "\n"
                              "5 \\<words\\>, 100 %\n"
                              "\n"
                              "```\n"
                              "  if (a < b && c)\n"
                              "```\n"
                              "\n"
                              "PASS: bf16 \\<= 0.5 %\n"
                              "\n"
                              "FAIL: fp16\n"
                              "\n"
                              "NOTE: fp32 \\[2J\n"
                              "\n"
                              "| a |\n"
                              "| --- |\n"
                              "| \\<b\\> |\n");
}

#define X30 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
#define X80 X30 X30 "xxxxxxxxxxxxxxxxxxxx"

Test(page, text_is_wrapped_at_80_columns) {
    static const char *const cases[][2] = {
        {"a b", "a b\n"},
        {X30 " " X30 " xxxxxxxxxxxxxxxxxx", X30 " " X30 " xxxxxxxxxxxxxxxxxx\n"},
        {X30 " " X30 " xxxxxxxxxxxxxxxxxxx", X30 " " X30 "\n  xxxxxxxxxxxxxxxxxxx\n"},
        {"a " X80 "y b", "a\n  " X80 "y\n  b\n"},
        {X80 "y", X80 "y\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct page page;
        FILE *out = printed_begin();
        page_begin(&page, PAGE_TEXT, "a", "b");
        page_paragraph(&page, cases[i][0]);
        page_end(&page, out);
        printed_end(out);
        cr_expect_str_eq(printed + strlen("a: b\n"), cases[i][1]);
    }
}

Test(page, well_formed) {
    print_page(PAGE_HTML);
    cut_style();
    expect_well_formed(printed);
    cr_expect_eq(strncmp(printed, "<!DOCTYPE html>\n<html lang=\"en\">", 32), 0);
    cr_expect_eq(occurrences(printed, "<title>A &lt;title&gt; &amp; &quot;more&quot;</title>"), 1);
    cr_expect_eq(occurrences(printed, "<h1>A &lt;title&gt; &amp; &quot;more&quot;</h1>"), 1);
    cr_expect_eq(occurrences(printed, "<p class=\"summary\">the &lt;summary&gt;</p>"), 1);
    cr_expect_eq(occurrences(printed, "<h2>A &lt;heading&gt;</h2>"), 1);
    cr_expect_eq(occurrences(printed, "<p>5 &lt;words&gt;, 100 %</p>"), 1);
    cr_expect_eq(occurrences(printed, "<code>  if (a &lt; b &amp;&amp; c)</code>"), 1);
    cr_expect_eq(occurrences(printed, "\"verdict good\"><strong>PASS</strong> bf16 &lt;= 0.5 %"),
                 1);
    cr_expect_eq(occurrences(printed, "\"verdict bad\"><strong>FAIL</strong> fp16"), 1);
    cr_expect_eq(occurrences(printed, "\"verdict neutral\"><strong>NOTE</strong> fp32"), 1);
}

Test(page, loads_nothing) {
    print_page(PAGE_HTML);
    static const char *const loaders[] = {"http:",    "https:",  "src=",   "url(",    "@import",
                                          "<script",  "<link",   "<img",   "<iframe", "@font-face",
                                          "onclick=", "<object", "<style "};
    for (size_t i = 0; i < sizeof loaders / sizeof *loaders; i++)
        cr_expect_eq(occurrences(printed, loaders[i]), 0, "%s", loaders[i]);
    cr_expect_eq(occurrences(printed, "default-src 'none'"), 1);
}

/* Every colour is defined for light and dark mode, and every colour in use is defined. */
Test(page, light_and_dark) {
    print_page(PAGE_HTML);
    cr_expect_eq(occurrences(printed, "color-scheme:light dark"), 1);
    cr_expect_eq(occurrences(printed, "name=\"viewport\" content=\"width=device-width"), 1);
    const char *dark = strstr(printed, "@media screen and (prefers-color-scheme:dark)");
    cr_assert_not_null(dark);
    int used = 0;
    for (const char *at = printed; (at = strstr(at, "var(--")); used++) {
        char name[40] = {0};
        at += 4;
        snprintf(name, sizeof name, "%.*s:#", (int)strcspn(at, ")"), at);
        cr_expect_eq(occurrences(printed, name), 2, "%s", name);
        cr_expect_eq(occurrences(dark, name), 1, "%s", name);
    }
    cr_expect_gt(used, 15);
}
