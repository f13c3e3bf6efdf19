/* The text of --help, under the names by which the programs are called. */
#ifndef DATA_BASE_HELP_H
#define DATA_BASE_HELP_H

#include <stdio.h>

/* Prints text, which names the programs as they stand where they were built: ./train, ./prepare,
 * ./compare. If program, an argv[0] or NULL, says that it was installed (its last part begins with
 * "mantissa-"), they are called mantissa-train and so on. */
void help_print(FILE *out, const char *text, const char *program);

#endif
