/* Pages: well-formed, escaped, without external resources, with light and dark colours. */
#include <criterion/criterion.h>

#include "model/page/page.h"
#include "test/model/page/markup.h"

static const char *text_of(const char *text) {
    FILE *out = printed_begin();
    page_text(out, text);
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
    FILE *out = printed_begin();
    page_names(out, "bf16:a.b=1:c=<2>,d: 3 %, e:");
    printed_end(out);
    cr_expect_str_eq(printed, "bf16:<wbr>a.b=1:<wbr>c=&lt;2&gt;,<wbr>d: 3 %, e:");
}

static void print_page(void) {
    FILE *out = printed_begin();
    page_begin(out, "A <title> & \"more\"", "the <summary>");
    page_heading(out, "A <heading>");
    page_paragraph(out, "%d %s, 100 %%", 5, "<words>");
    page_code(out, "\n  if (a < b && c)\n");
    page_verdict(out, PAGE_GOOD, "PASS", "bf16 <= 0.5 %");
    page_verdict(out, PAGE_BAD, "FAIL", "fp16");
    page_verdict(out, PAGE_NEUTRAL, "NOTE", "fp32");
    page_charts_begin(out);
    page_charts_end(out);
    page_end(out);
    printed_end(out);
}

/* The style is not markup: it must contain none and is removed. */
static void cut_style(void) {
    char *from = strstr(printed, "<style>"), *to = strstr(printed, "</style>");
    cr_assert(from && to && from < to);
    *to = '\0';
    cr_expect_null(strpbrk(from + 7, "<&"));
    cr_expect_eq(occurrences(from, "{"), occurrences(from, "}"));
    *to = '<';
    memmove(from + 7, to, strlen(to) + 1);
}

Test(page, well_formed) {
    print_page();
    cut_style();
    expect_well_formed(printed);
    cr_expect_eq(strncmp(printed, "<!DOCTYPE html>\n<html lang=\"en\">", 32), 0);
    cr_expect_eq(occurrences(printed, "<title>A &lt;title&gt; &amp; &quot;more&quot;</title>"), 1);
    cr_expect_eq(occurrences(printed, "<h1>A &lt;title&gt; &amp; &quot;more&quot;</h1>"), 1);
    cr_expect_eq(occurrences(printed, "<p class=\"summary\">the &lt;summary&gt;</p>"), 1);
    cr_expect_eq(occurrences(printed, "<h2>A &lt;heading&gt;</h2>"), 1);
    cr_expect_eq(occurrences(printed, "<p>5 &lt;words&gt;, 100 %</p>"), 1);
    cr_expect_eq(occurrences(printed, "<code>\n  if (a &lt; b &amp;&amp; c)\n</code>"), 1);
    cr_expect_eq(occurrences(printed, "\"verdict good\"><strong>PASS</strong> bf16 &lt;= 0.5 %"),
                 1);
    cr_expect_eq(occurrences(printed, "\"verdict bad\"><strong>FAIL</strong> fp16"), 1);
    cr_expect_eq(occurrences(printed, "\"verdict neutral\"><strong>NOTE</strong> fp32"), 1);
}

Test(page, loads_nothing) {
    print_page();
    static const char *const loaders[] = {"http:",    "https:",  "src=",   "url(",    "@import",
                                          "<script",  "<link",   "<img",   "<iframe", "@font-face",
                                          "onclick=", "<object", "<style "};
    for (size_t i = 0; i < sizeof loaders / sizeof *loaders; i++)
        cr_expect_eq(occurrences(printed, loaders[i]), 0, "%s", loaders[i]);
    cr_expect_eq(occurrences(printed, "default-src 'none'"), 1);
}

/* Every colour is defined for light and dark mode, and every colour in use is defined. */
Test(page, light_and_dark) {
    print_page();
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
