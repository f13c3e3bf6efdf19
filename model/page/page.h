/* A report as text for the terminal, as Markdown, or as a self-contained HTML page: inline style,
 * no scripts, no external resources; it fits phones and paper, and light or dark mode follows the
 * browser's setting.
 *
 * Functions take plain UTF-8 text. Special characters are escaped, except by page_code in Markdown;
 * control characters (also bidirectional ones) and invalid UTF-8 are replaced. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"
#include "data/util/printed.h"
#include "model/page/table.h"

enum { PAGE_WIDTH = 80 }; /* columns of text in a terminal */

enum page_form { PAGE_TEXT, PAGE_MARKDOWN, PAGE_HTML, PAGE_JSON };

struct page {
    enum page_form form;
    struct printed printed;
};

/* Begins a page with its main heading; `summary` is the line below it. */
void page_begin(struct page *page, enum page_form form, const char *title, const char *summary);

/* Writes the page to out and frees it. */
void page_end(struct page *page, FILE *out);

void page_heading(const struct page *page, const char *text);
void page_paragraph(const struct page *page, const char *text);
void page_code(const struct page *page, const char *text);     /* preformatted block */
void page_table(const struct page *page, struct table *table); /* frees the table */

/* Prints a paragraph that begins with a few coloured words, the result. */
enum page_note_kind { PAGE_GOOD, PAGE_BAD, PAGE_NEUTRAL };
void page_note(const struct page *page, enum page_note_kind kind, const char *head,
               const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Prints the JSON of a report. Numbers that are not finite are null. */
struct cJSON;
void page_print_json(FILE *out, const struct cJSON *root);

/* Creates the directory of reports. Fails, before long work, if it is not writable. */
int page_folder(const char *folder, struct error *error);

/* Writes a report in one form to the file `name` in `folder`. */
typedef void page_printer(FILE *out, const void *report, enum page_form form);
int page_write(const char *folder, const char *name, page_printer *print, const void *report,
               enum page_form form, struct error *error);

/* Prints a report as text to standard output and, with a folder, writes it there as NAME.json and
 * NAME.html. */
int page_publish(page_printer *print, const void *report, const char *folder, const char *name,
                 struct error *error);
