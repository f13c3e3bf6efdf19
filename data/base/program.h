/* What all programs share: their version, how they end, and the text of --help. */
#ifndef DATA_BASE_PROGRAM_H
#define DATA_BASE_PROGRAM_H

#include <stdio.h>

/* Of all programs, and of what they write. */
#define MANTISSA_VERSION "0.1.0"

/* Exit statuses, which functions that are a whole command return too; 130 and 143 follow the
 * shell's 128 + signal. */
enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_SIGNAL = 128 };

/* Prints text, which names the programs as they stand where they were built: ./train, ./prepare,
 * ./compare. If program, an argv[0] or NULL, says that it was installed (its last part begins with
 * "mantissa-"), they are called mantissa-train and so on. */
void help_print(FILE *out, const char *text, const char *program);

#endif
