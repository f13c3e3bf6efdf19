/* One self-contained HTML page: style inline, no scripts, nothing loaded. Readable on a phone and
 * on paper, light and dark by the reader's setting. */
#pragma once

#include <stdio.h>

/* The page up to its heading; `summary` is the line below the title. */
void page_begin(FILE *out, const char *title, const char *summary);

void page_heading(FILE *out, const char *text);
void page_paragraph(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void page_code(FILE *out, const char *text); /* as it is, to be copied */

/* A short word in colour: what came out. */
enum page_mood { PAGE_GOOD, PAGE_BAD, PAGE_NEUTRAL };
void page_verdict(FILE *out, enum page_mood mood, const char *word, const char *text);

/* Between these two, charts stand side by side where the screen is wide enough. Without gnuplot a
 * sentence says why there are none. */
void page_charts_begin(FILE *out);
void page_charts_end(FILE *out);

void page_end(FILE *out);

/* Text as HTML: & < > " are escaped; bytes that are no UTF-8, and control characters (also
 * bidirectional ones) other than tab and line breaks, become U+FFFD. */
void page_text(FILE *out, const char *text);

/* Likewise, with names such as bf16:autocast.float32=qkv,gelu, which may be broken after colons and
 * commas. */
void page_names(FILE *out, const char *text);
