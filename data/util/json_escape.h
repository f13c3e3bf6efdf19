/* Writing of JSON strings. */
#pragma once

#include <stdio.h>

/* Prints text as a JSON string, with quotes and escapes. */
void json_print_string(FILE *out, const char *text);
