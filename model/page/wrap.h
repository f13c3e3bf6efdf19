/* Word wrap for the terminal. */
#pragma once

#include <stdio.h>

enum { WRAP_WIDTH = 80 };

/* Prints text in lines of at most WRAP_WIDTH columns, with a line break at the end. A longer word
 * has its own line. Lines after the first are indented by `indent` spaces. column: columns already
 * used in the first line. */
void print_wrapped(FILE *out, const char *text, int column, int indent);
