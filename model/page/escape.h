/* Plain UTF-8 text as text on one line, as Markdown and as HTML. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

/* Prints text[0..end - text) with control characters as spaces. */
void escape_text(FILE *out, const char *text, const char *end);

/* The same for Markdown, with its special characters escaped. */
void escape_markdown(FILE *out, const char *text);

/* Prints text with & < > " escaped. Invalid UTF-8 and control characters (also bidirectional ones)
 * other than tab and line breaks become U+FFFD. breaks: allow line breaks after colons and commas,
 * for names such as bf16:autocast.float32=qkv,gelu. */
void escape_html(FILE *out, const char *text, bool breaks);
