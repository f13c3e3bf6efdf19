/* A self-contained HTML page: inline style, no scripts, no external resources. The layout fits
 * phones and paper; light or dark mode follows the browser's setting. */
#pragma once

#include <stdio.h>

/* Writes the page up to its main heading; `summary` is the line below the title. */
void page_begin(FILE *out, const char *title, const char *summary);

void page_heading(FILE *out, const char *text);
void page_paragraph(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void page_code(FILE *out, const char *text); /* preformatted block */

/* Writes a paragraph that begins with a short coloured word, the result. */
enum page_mood { PAGE_GOOD, PAGE_BAD, PAGE_NEUTRAL };
void page_verdict(FILE *out, enum page_mood mood, const char *word, const char *text);

/* Begin and end a group of charts, which are side by side on a wide screen. Without gnuplot a
 * sentence explains why there are no charts. */
void page_charts_begin(FILE *out);
void page_charts_end(FILE *out);

void page_end(FILE *out);

/* Writes text as HTML: & < > " are escaped. Invalid UTF-8 and control characters (also
 * bidirectional ones) other than tab and line breaks become U+FFFD. */
void page_text(FILE *out, const char *text);

/* Writes text in the same way and allows line breaks after colons and commas, for names such as
 * bf16:autocast.float32=qkv,gelu. */
void page_names(FILE *out, const char *text);
