#include "model/page/page.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "data/util/files.h"
#include "data/util/utf8.h"
#include "model/page/escape.h"

/* Dark mode applies to screens only, so printed pages stay light. */
static const char colours[] =
    ":root{color-scheme:light dark;"
    "--ground:#fff;--raised:#f6f7f8;--ink:#1c2024;--soft:#5b636b;--line:#d9dde1;--grid:#e8ebee;"
    "--good:#00734f;--good-ground:#e5f4ee;--bad:#b03a00;--bad-ground:#fcece4}\n"
    "@media screen and (prefers-color-scheme:dark){:root{"
    "--ground:#14171a;--raised:#1d2125;--ink:#e4e7ea;--soft:#9aa3ab;--line:#363c42;"
    "--grid:#272c31;"
    "--good:#4fd1a1;--good-ground:#13291f;--bad:#ff9a66;--bad-ground:#33200f}}\n";

static const char style[] =
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
    ".right{text-align:right}\n"
    "figure{display:inline-block;width:min(100%,33rem);margin:.75rem .5rem .75rem 0;"
    "vertical-align:top}\n"
    "figcaption{font-weight:600}\n"
    ".chart{display:block;width:100%;height:auto}\n"
    /* gnuplot draws on a white background, which dark mode inverts. */
    "@media screen and (prefers-color-scheme:dark){.chart{filter:invert(1) hue-rotate(180deg)}}\n"
    "@media (max-width:32rem){main{padding:1.5rem 1rem 3rem}h1{font-size:1.5rem}"
    "th,td{padding:.4rem .6rem}}\n"
    "@media print{:root{color-scheme:light}main{max-width:none;padding:0}"
    "figure,tr,pre,.verdict{break-inside:avoid}h2{break-after:avoid}"
    "table{font-size:.75rem}.table,pre{overflow:visible}pre{white-space:pre-wrap}"
    "th,td{white-space:normal}}\n";

/* ---- parts of a page */

/* Prints text in lines of at most PAGE_WIDTH columns, if no word is longer. Lines after the first
 * are indented. */
static void print_wrapped(FILE *out, const char *text, int indent) {
    int column = 0;
    for (bool space = false; *text; space = true) {
        int length = (int)strcspn(text, " ");
        if (space && column + 1 + length > PAGE_WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
            space = false;
        }
        fprintf(out, "%s%.*s", space ? " " : "", length, text);
        column += space + length;
        text += length + (text[length] == ' ');
    }
    fputc('\n', out);
}

/* Prints a block of text: an HTML element, a Markdown paragraph after `mark`, or wrapped lines. */
static void print_block(const struct page *page, const char *tag, const char *mark,
                        const char *text, int indent) {
    FILE *out = page->printed.out;
    if (page->form == PAGE_HTML) {
        fprintf(out, "<%s>", tag);
        escape_html(out, text, true);
        fprintf(out, "</%s>\n", tag);
    } else if (page->form == PAGE_MARKDOWN) {
        fprintf(out, "%s", mark);
        escape_markdown(out, text);
        fputc('\n', out);
    } else print_wrapped(out, text, indent);
}

void page_begin(struct page *page, enum page_form form, const char *title, const char *summary) {
    char *whole;
    page->form = form;
    if (printed_open(&page->printed) || asprintf(&whole, "%s: %s", title, summary) < 0)
        end_out_of_memory();
    FILE *out = page->printed.out;
    if (form == PAGE_HTML) {
        fprintf(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                     "<meta name=\"color-scheme\" content=\"light dark\">\n"
                     "<meta http-equiv=\"Content-Security-Policy\" "
                     "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<title>");
        escape_html(out, title, false);
        fprintf(out, "</title>\n<style>\n%s%s</style>\n</head>\n<body>\n<main>\n", colours, style);
        print_block(page, "h1", "", title, 0);
        fprintf(out, "<p class=\"summary\">");
        escape_html(out, summary, true);
        fprintf(out, "</p>\n");
    } else print_block(page, "", "# ", whole, 2);
    free(whole);
}

void page_end(struct page *page, FILE *out) {
    bool html = page->form == PAGE_HTML;
    if (html) fprintf(page->printed.out, "</main>\n</body>\n</html>\n");
    if (printed_close(&page->printed)) end_out_of_memory();
    /* HTML has escaped what comes from files. */
    fputs(html ? page->printed.text : utf8_mask(page->printed.text), out);
    free(page->printed.text);
}

void page_heading(const struct page *page, const char *text) {
    if (page->form == PAGE_TEXT) fputc('\n', page->printed.out);
    print_block(page, "h2", "\n## ", text, 0);
}

void page_paragraph(const struct page *page, const char *text) {
    print_block(page, "p", "\n", text, 2);
}

void page_note(const struct page *page, enum page_note_kind kind, const char *head,
               const char *format, ...) {
    static const char *const classes[] = {
        [PAGE_GOOD] = "good", [PAGE_BAD] = "bad", [PAGE_NEUTRAL] = "neutral"};
    FILE *out = page->printed.out;
    char *text, *whole;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0) end_out_of_memory();
    va_end(arguments);
    if (asprintf(&whole, "%s: %s", head, text) < 0) end_out_of_memory();
    if (page->form == PAGE_HTML) {
        fprintf(out, "<p class=\"verdict %s\"><strong>", classes[kind]);
        escape_html(out, head, true);
        fprintf(out, "</strong> ");
        escape_html(out, text, true);
        fprintf(out, "</p>\n");
    } else print_block(page, "", "\n", whole, 4);
    free(whole);
    free(text);
}

void page_code(const struct page *page, const char *text) {
    FILE *out = page->printed.out;
    if (page->form == PAGE_HTML) {
        fprintf(out, "<pre tabindex=\"0\"><code>");
        escape_html(out, text, false);
        fprintf(out, "</code></pre>\n");
    } else fprintf(out, page->form == PAGE_MARKDOWN ? "\n```\n%s\n```\n" : "\n%s\n", text);
}

void page_table(const struct page *page, struct table *table) {
    FILE *out = page->printed.out;
    if (page->form != PAGE_HTML) fputc('\n', out);
    if (page->form == PAGE_HTML) table_print_html(out, table);
    else if (page->form == PAGE_MARKDOWN) table_print_markdown(out, table);
    else table_print_text(out, table, PAGE_WIDTH);
    table_free(table);
}

/* ---- files */

void page_print_json(FILE *out, const cJSON *root) {
    char *text = cJSON_Print(root);
    if (!text) end_out_of_memory();
    fprintf(out, "%s\n", text);
    free(text);
}

int page_write(const char *folder, const char *name, page_printer *print, const void *report,
               enum page_form form, struct error *error) {
    char path[FILE_PATH_MAX];
    struct printed printed;
    if (file_path_join(path, folder, name, error)) return -1;
    if (printed_open(&printed)) return fail(error, "%s: %s", path, strerror(errno));
    print(printed.out, report, form);
    return printed_write(&printed, path, NULL, error);
}

int page_folder(const char *folder, struct error *error) {
    if (directory_create(folder, error)) return -1;
    if (access(folder, W_OK | X_OK) == 0) return 0;
    return fail(error, "cannot write to the directory %.500s: %s\nname another one with --out",
                folder, strerror(errno));
}

int page_publish(page_printer *print, const void *report, const char *folder, const char *name,
                 struct error *error) {
    char json[100], html[100];
    print(stdout, report, PAGE_TEXT);
    if (!folder) return 0;
    snprintf(json, sizeof json, "%s.json", name);
    snprintf(html, sizeof html, "%s.html", name);
    return page_write(folder, json, print, report, PAGE_JSON, error) ||
                   page_write(folder, html, print, report, PAGE_HTML, error)
               ? -1
               : 0;
}
