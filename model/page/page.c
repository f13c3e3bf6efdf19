#include "model/page/page.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/utf8.h"
#include "model/page/gnuplot.h"

/* Dark mode applies to screens only, so printed pages stay light. */
static const char colours[] =
    ":root{color-scheme:light dark;"
    "--ground:#fff;--raised:#f6f7f8;--ink:#1c2024;--soft:#5b636b;--line:#d9dde1;--grid:#e8ebee;"
    "--good:#00734f;--good-ground:#e5f4ee;--bad:#b03a00;--bad-ground:#fcece4}\n"
    "@media screen and (prefers-color-scheme:dark){:root{"
    "--ground:#14171a;--raised:#1d2125;--ink:#e4e7ea;--soft:#9aa3ab;--line:#363c42;"
    "--grid:#272c31;"
    "--good:#4fd1a1;--good-ground:#13291f;--bad:#ff9a66;--bad-ground:#33200f}}\n";

static const char text_style[] =
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--ground);color:var(--ink);"
    "font:1rem/1.55 system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\",sans-serif;"
    "-webkit-text-size-adjust:100%}\n"
    "main{max-width:70rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}\n"
    "h1{font-size:1.9rem;line-height:1.2;letter-spacing:-.015em;margin:0 0 .4rem}\n"
    "h2{font-size:1.25rem;line-height:1.3;margin:2.75rem 0 .75rem;padding-top:.75rem;"
    "border-top:1px solid var(--line)}\n"
    "h1,h2,p,figcaption{overflow-wrap:anywhere}\n"
    "p{max-width:44rem;margin:.75rem 0}\n"
    ".summary{color:var(--soft);font-size:1.05rem;margin:0 0 1.5rem}\n"
    ".verdict{border-left:4px solid var(--soft);border-radius:0 4px 4px 0;"
    "background:var(--raised);padding:.55rem .9rem}\n"
    ".verdict strong{margin-right:.5rem}\n"
    ".good{border-color:var(--good);background:var(--good-ground)}.good strong{color:var(--good)}\n"
    ".bad{border-color:var(--bad);background:var(--bad-ground)}.bad strong{color:var(--bad)}\n"
    "pre{background:var(--raised);border:1px solid var(--line);border-radius:4px;"
    "padding:.75rem 1rem;overflow-x:auto;font:.875rem/1.5 ui-monospace,SFMono-Regular,Menlo,"
    "Consolas,\"DejaVu Sans Mono\",monospace}\n"
    "pre code{font:inherit}\n"
    ".table{overflow-x:auto;margin:1rem 0}\n"
    "table{border-collapse:collapse;font-size:.925rem;font-variant-numeric:tabular-nums;"
    "line-height:1.4}\n"
    "th,td{padding:.4rem .75rem;text-align:left;vertical-align:baseline;white-space:nowrap;"
    "border-bottom:1px solid var(--grid)}\n"
    "th{font-weight:600;white-space:normal}\n"
    "thead th{color:var(--soft);border-bottom:1.5px solid var(--line);vertical-align:bottom}\n"
    "th:first-child{padding-left:0;position:sticky;left:0;background:var(--ground)}\n"
    ".right{text-align:right}\n";

static const char chart_style[] =
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));"
    "gap:1.5rem 2.5rem;margin:1rem 0}\n"
    "figure{margin:1.25rem 0;max-width:38rem;min-width:0}\n"
    ".charts figure{margin:0}\n"
    "figcaption{font-weight:600;margin-bottom:.25rem}\n"
    ".legend{list-style:none;margin:.1rem 0 .3rem;padding:0;display:flex;flex-wrap:wrap;"
    "gap:.1rem 1.1rem;font-size:.875rem}\n"
    ".legend li{display:flex;align-items:center;gap:.4rem;min-width:0;overflow-wrap:anywhere}\n"
    ".chart{display:block;width:100%;height:auto}\n"
    /* gnuplot draws on a white background, which dark mode inverts. */
    "@media screen and (prefers-color-scheme:dark){.chart,.legend b{filter:invert(1) "
    "hue-rotate(180deg)}}\n"
    "@media (max-width:32rem){main{padding:1.5rem 1rem 3rem}h1{font-size:1.5rem}"
    "th,td{padding:.4rem .6rem}}\n"
    "@media print{:root{color-scheme:light}main{max-width:none;padding:0}"
    "figure,tr,pre,.verdict{break-inside:avoid}h2{break-after:avoid}"
    "table{font-size:.75rem}.table,pre{overflow:visible}pre{white-space:pre-wrap}"
    "th,td{white-space:normal}}\n";

static void print_text(FILE *out, const char *text, bool names) {
    for (size_t rest = strlen(text), size; rest; text += size, rest -= size) {
        size = utf8_character(text, rest);
        bool control = size > 0 && *text != '\r' && utf8_is_control(text, size);
        if (size == 0 || control) {
            fputs("\xef\xbf\xbd", out);
            if (size == 0) size = 1;
        } else if (*text == '&') fputs("&amp;", out);
        else if (*text == '<') fputs("&lt;", out);
        else if (*text == '>') fputs("&gt;", out);
        else if (*text == '"') fputs("&quot;", out);
        else fwrite(text, 1, size, out);
        if (names && (*text == ':' || *text == ',') && text[1] > ' ') fputs("<wbr>", out);
    }
}

void page_text(FILE *out, const char *text) {
    print_text(out, text, false);
}

void page_names(FILE *out, const char *text) {
    print_text(out, text, true);
}

/* Writes an element with text. tag: its name, optionally followed by attributes. */
static void element(FILE *out, const char *tag, const char *text) {
    fprintf(out, "<%s>", tag);
    page_text(out, text);
    fprintf(out, "</%.*s>\n", (int)strcspn(tag, " "), tag);
}

void page_begin(FILE *out, const char *title, const char *summary) {
    fprintf(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                 "<meta name=\"color-scheme\" content=\"light dark\">\n"
                 "<meta http-equiv=\"Content-Security-Policy\" "
                 "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n");
    element(out, "title", title);
    fprintf(out, "<style>\n%s%s%s</style>\n</head>\n<body>\n<main>\n", colours, text_style,
            chart_style);
    fputs("<h1>", out);
    page_names(out, title);
    fputs("</h1>\n", out);
    element(out, "p class=\"summary\"", summary);
}

void page_end(FILE *out) {
    fprintf(out, "</main>\n</body>\n</html>\n");
}

void page_heading(FILE *out, const char *text) {
    element(out, "h2", text);
}

void page_paragraph(FILE *out, const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0) abort();
    element(out, "p", text);
    free(text);
}

void page_code(FILE *out, const char *text) {
    fprintf(out, "<pre tabindex=\"0\"><code>");
    page_text(out, text);
    fprintf(out, "</code></pre>\n");
}

void page_verdict(FILE *out, enum page_mood mood, const char *word, const char *text) {
    static const char *const moods[] = {
        [PAGE_GOOD] = "good", [PAGE_BAD] = "bad", [PAGE_NEUTRAL] = "neutral"};
    fprintf(out, "<p class=\"verdict %s\"><strong>", moods[mood]);
    page_text(out, word);
    fprintf(out, "</strong> ");
    page_names(out, text);
    fprintf(out, "</p>\n");
}

void page_charts_begin(FILE *out) {
    if (gnuplot_problem()) page_paragraph(out, "%s", gnuplot_problem());
    fprintf(out, "<div class=\"charts\">\n");
}

void page_charts_end(FILE *out) {
    fprintf(out, "</div>\n");
}
