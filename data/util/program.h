/* Shared by all programs: their version, how they end, their flags ("--name", "--name VALUE" or
 * "--name=VALUE", described in a table), and the text of --help. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"

/* Version of all programs, and of the files they write. */
#define MANTISSA_VERSION "0.1.0"

/* Exit statuses, which functions that are a whole command return too; 130 and 143 follow the
 * shell's 128 + signal. */
enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_SIGNAL = 128 };

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

/* Prints text, which names the programs as they stand where they were built: ./train, ./prepare,
 * ./compare. If program, an argv[0] or NULL, says that it was installed (its last part begins with
 * "mantissa-"), they are called mantissa-train and so on. */
void help_print(FILE *out, const char *text, const char *program);
