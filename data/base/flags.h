/* Flags of a command line, "--name", "--name VALUE" or "--name=VALUE", described in a table. */
#ifndef DATA_BASE_FLAGS_H
#define DATA_BASE_FLAGS_H

#include <stdio.h>

#include "data/base/error.h"

struct flag_row {
    const char *name;  /* "--out" */
    const char *value; /* what it takes, "DIR"; "[PATH]" if it may be left out; NULL: nothing */
    const char *help;  /* for flags_print, further lines after a line break */
};

enum { FLAG_UNKNOWN = -1, FLAG_WRONG = -2 };

/* Reads the flag argv[*at] and its value, which may be argv[*at + 1]; moves *at to the last one
 * read. *value is NULL where there is none. Returns the number of its row, FLAG_UNKNOWN, or
 * FLAG_WRONG with a message about its value. */
int flags_read(const struct flag_row *rows, int count, int argc, char **argv, int *at, char **value,
               struct error *error);

/* For --help: a line for each, the text from `column` on. */
void flags_print(FILE *out, const struct flag_row *rows, int count, int column);

#endif
