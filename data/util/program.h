/* Functions shared by all programs: version, exit statuses, and flags
 * ("--name", "--name VALUE" or "--name=VALUE", described in a table). */
#pragma once

#include <stdio.h>

#include "data/util/error.h"

/* Version of all programs and of the files they write. */
#define MANTISSA_VERSION "0.1.0"

/* Exit statuses of programs, which functions that implement a whole command return as well. Status
 * 130 and 143 follow the shell's 128 + signal. */
enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_SIGNAL = 128 };

struct flag_row {
    const char *name;  /* "--out" */
    const char *value; /* its value, "DIR"; "[PATH]" if optional; NULL: none */
    const char *help;  /* text for flags_print; line breaks start further lines */
};

enum { FLAG_UNKNOWN = -1, FLAG_WRONG = -2 };

/* Reads the flag argv[*at] and its value, which may be argv[*at + 1]; moves *at to the last
 * argument read. A value that is also a flag of the table follows "=", unless the row's value is
 * "TEXT" or "PROMPT". *value is NULL without a value. Returns the index of its row, FLAG_UNKNOWN,
 * or FLAG_WRONG with a message about its value. */
int flags_read(const struct flag_row *rows, int count, int argc, char **argv, int *at, char **value,
               struct error *error);

/* Fails with the row whose name is closest to that of an unknown flag. */
int flags_refuse(const struct flag_row *rows, int count, const char *argument, struct error *error);

/* Prints a line for each flag, for --help, with the help text at `column`. */
void flags_print(FILE *out, const struct flag_row *rows, int count, int column);
