/* Text in lines of a terminal's width. */
#pragma once

#include <stdio.h>

enum { WRAP_WIDTH = 80 };

/* Words of text in lines of at most WRAP_WIDTH columns, with a line break at the end; a word that
 * is longer stands alone. Lines after the first begin with `indent` spaces. What stands in the
 * first line already takes `column` columns. */
void print_wrapped(FILE *out, const char *text, int column, int indent);
